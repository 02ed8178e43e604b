// Transcripts on a runner that says what it is asked: windows take turns, and a device that fails is replaced.

import { expect, test } from "vitest";

import { attending, windowBatch } from "../../src/audio/hearing.js";
import { melWindow } from "../../src/audio/readings.js";
import { choose, compressionRatio } from "../../src/audio/scores.js";
import type { TranscriberParts } from "../../src/audio/transcriber.js";
import { Transcriber } from "../../src/audio/transcriber.js";
import { Gate } from "../../src/engine/gate.js";
import { drawAt } from "../../src/engine/resolved_sampling.js";
import { DeviceError, RequestError } from "../../src/errors.js";
import type { Batch } from "../../src/runtime/batch.js";
import type { AudioSpec } from "../../src/runtime/manifest.js";
import { pattern } from "./sound.js";

const ROWS = 50;
const [END, START, NO_SPEECH, NO_TIMESTAMPS, VOCABULARY] = [8, 9, 10, 11, 12 + ROWS + 1];
const AUDIO: AudioSpec = {
  mel_bins: 20,
  frame_samples: 400,
  hop_samples: 160,
  frames_of_row: 2,
  row_elements: 80,
  positions: ROWS,
  hidden_size: 8,
  num_layers: 1,
  num_heads: 1,
  head_dim: 8,
  intermediate_size: 8,
  rows_behind: 0,
  rows_back: [],
  rows_ahead: [],
  receptive_field: null,
};
const MANIFEST = {
  model: "words",
  spec: { eos_token_ids: [END], audio: AUDIO },
  speech: {
    start: START,
    no_timestamps: NO_TIMESTAMPS,
    no_speech: NO_SPEECH,
    seconds: 1,
    languages: [],
    transcribe: null,
    translate: null,
    previous: null,
    suppressed: [START, NO_SPEECH],
    suppressed_first: [END],
    max_initial_timestamp: null,
  },
  context: 24,
  page_size: 16,
} as unknown as TranscriberParts["manifest"];

/** Writes the token after the last one until the end; ``fails`` says at which of its calls the device is lost. */
class Words {
  calls = 0;
  windows = 0;
  /** The first token of a text, and the one after the last. */
  from = 0;
  until = END;
  /** The token after which two are left out. */
  skipsAfter = -1;
  /** The calls since the last window, of which no other transcript's may be between them. */
  readonly log: string[] = [];

  constructor(
    private readonly fails: (call: number) => boolean = () => false,
    private readonly repeats = false,
  ) {}

  readonly limits = { tokens: 64, rows: 4 } as ReturnType<TranscriberParts["runner"]>["limits"];

  async listen(batch: Batch): Promise<void> {
    await this.#call();
    this.windows++;
    this.log.push(`window ${Number(batch.frames?.[20] !== 0)}`);
  }

  async forwardLogits({ token_ids: ids, sample_rows: rows, source_positions: sources }: Batch): Promise<Float32Array> {
    await this.#call();
    expect(sources).toEqual(ids.map(() => ROWS - 1));
    this.log.push(ids.join());
    const logits = new Float32Array(rows.length * VOCABULARY);
    for (const [index, row] of rows.entries()) {
      const last = ids[row] ?? 0;
      const next = last >= START || this.repeats ? this.from : last + (last === this.skipsAfter ? 3 : 1);
      logits[index * VOCABULARY + (next === this.until ? END : next)] = this.repeats ? 4 : 30;
    }
    return logits;
  }

  async #call(): Promise<void> {
    await Promise.resolve();
    if (this.fails(this.calls++)) throw new DeviceError("the device was lost");
  }
}

function open(runners: readonly Words[]): { readonly transcriber: Transcriber; readonly replaced: () => number } {
  let index = 0;
  const current = (): Words => {
    const runner = runners[index];
    if (runner === undefined) throw new DeviceError("there is no other device");
    return runner;
  };
  const transcriber = new Transcriber({
    manifest: MANIFEST,
    tokenizer: { encode: () => [], decode: (ids) => ids.map((id) => String.fromCharCode(97 + id)).join("") },
    runner: current,
    replaceRunner: () => {
      index++;
      return Promise.resolve().then(current);
    },
    gate: new Gate(),
  });
  return { transcriber, replaced: () => index };
}

const SOUND = { samples: pattern(9000), sampleRate: 16_000 };

test("a text is what the model writes until its end", async () => {
  const { transcriber } = open([new Words()]);
  const { text, language, duration, task, segments } = await transcriber.transcribe(SOUND, { temperature: 0 });
  expect([text, language, duration, task]).toEqual(["abcdefgh", null, 0.5625, "transcribe"]);
  expect(segments).toMatchObject([{ id: 0, seek: 0, start: 0, end: 0.56, tokens: [0, 1, 2, 3, 4, 5, 6, 7] }]);
});

test("a device that fails in the middle of a window is replaced, and the window read again", async () => {
  for (const at of [0, 1, 4]) {
    const [lost, other] = [new Words((call) => call === at), new Words()];
    const { transcriber, replaced } = open([lost, other]);
    expect((await transcriber.transcribe(SOUND, { temperature: 0 })).text).toBe("abcdefgh");
    expect([replaced(), other.windows]).toEqual([1, 1]);
  }
});

test("a second failure ends the transcript, and the next one has another device", async () => {
  const runners = [new Words(() => true), new Words((call) => call === 0), new Words()];
  const { transcriber } = open(runners);
  await expect(transcriber.transcribe(SOUND, { temperature: 0 })).rejects.toThrow(DeviceError);
  expect((await transcriber.transcribe(SOUND, { temperature: 0 })).text).toBe("abcdefgh");
});

test("a text that was written before is computed several tokens at a time, as far as it is the same", async () => {
  const words = new Words();
  const { transcriber } = open([words]);
  const steps = async (): Promise<readonly string[]> => {
    words.log.length = 0;
    expect((await transcriber.transcribe(SOUND, { temperature: 0 })).text).toBe("abcdefgh".slice(words.from));
    return words.log.slice(2);
  };
  expect(await steps()).toEqual(["0", "1", "2", "3", "4", "5", "6", "7"]);
  expect(await steps()).toEqual(["0,1", "2,3,4,5", "6,7"]);
  // Another text: its first token is not the one that was guessed.
  words.from = 5;
  expect(await steps()).toEqual(["5", "6", "7"]);
  // One that goes on, and one that ends before the guess does.
  words.from = 0;
  await steps();
  words.until = 4;
  words.log.length = 0;
  expect((await transcriber.transcribe(SOUND, { temperature: 0 })).text).toBe("abcd");
  expect(words.log.slice(2)).toEqual(["0,1", "2,3,4,5"]);
  words.until = END;
  words.log.length = 0;
  expect((await transcriber.transcribe(SOUND, { temperature: 0 })).text).toBe("abcdefgh");
  expect(words.log.slice(2)).toEqual(["0,1", "2,3", "4", "5", "6", "7"]);
  // One that differs in the middle: what was computed for the tokens behind that is left.
  words.skipsAfter = 3;
  words.log.length = 0;
  expect((await transcriber.transcribe(SOUND, { temperature: 0 })).text).toBe("abcdgh");
  expect(words.log.slice(2)).toEqual(["0,1", "2,3,4,5", "6", "7"]);
  words.skipsAfter = -1;
  // A drawn text is not the likeliest one, and is not guessed.
  words.log.length = 0;
  await transcriber.transcribe(SOUND, { temperature: 0.1 });
  expect(words.log.slice(2)).toEqual(["0", "1", "2", "3", "4", "5", "6", "7"]);
});

test("windows of several transcripts take turns", async () => {
  const words = new Words();
  const { transcriber } = open([words]);
  const texts = await Promise.all([1, 2, 3].map(() => transcriber.transcribe(SOUND, { temperature: 0 })));
  expect(texts.map(({ text }) => text)).toEqual(["abcdefgh", "abcdefgh", "abcdefgh"]);
  const one = "window 1,9,11,0,1,2,3,4,5,6,7";
  expect(words.log.join()).toBe([one, one, one].join());
});

test("a text that repeats itself is written again at higher temperatures, with the same draws for a seed", async () => {
  const texts = await Promise.all(
    [1, 1, 2].map((seed) => open([new Words(() => false, true)]).transcriber.transcribe(SOUND, { seed })),
  );
  const [first, again, other] = texts.map(({ segments }) => segments[0]);
  expect(first).toEqual(again);
  expect(first?.tokens).not.toEqual(other?.tokens);
  expect(first?.temperature).toBeGreaterThan(0);
  const { segments } = await open([new Words(() => false, true)]).transcriber.transcribe(SOUND, { temperature: 0 });
  expect(segments[0]?.tokens.join("")).toMatch(/^0{22}$/);
});

test("what the model does not have is refused by name", async () => {
  const { transcriber } = open([new Words()]);
  const refused = async (options: object, message: RegExp): Promise<void> => {
    await expect(transcriber.transcribe(SOUND, options)).rejects.toThrow(RequestError);
    await expect(transcriber.transcribe(SOUND, options)).rejects.toThrow(message);
  };
  await refused({ language: "en" }, /knows one language/);
  await refused({ task: "translate" }, /does not translate/);
  await refused({ prompt: "names" }, /no token for a text that precedes/);
  await refused({ temperature: -1 }, /temperature is -1/);
});

test("rows have the frames around them, with zeros outside of the window and of the sound", () => {
  const window = { bins: 20, count: 100, data: Float32Array.from({ length: 2000 }, (_, index) => 1 + (index % 97)) };
  const { frames = new Float32Array(), source_slots: slots } = windowBatch(
    MANIFEST,
    melWindow(AUDIO, window, { start: 0, own: 100, rows: ROWS }),
  );
  const value = (bin: number, frame: number): number => Number(window.data[bin * window.count + frame]);
  expect([frames.length, slots?.length]).toEqual([ROWS * 80, ROWS]);
  expect([...frames.subarray(0, 20)]).toEqual(new Array<number>(20).fill(0));
  for (const [row, place] of [
    [0, 1],
    [3, 0],
    [3, 3],
    [49, 2],
  ] as const)
    expect(frames[row * 80 + place * 20 + 7]).toBe(value(7, 2 * row - 1 + place));
  expect([...frames.subarray(49 * 80 + 60)]).toEqual(new Array<number>(20).fill(0));
  const { frames: later = new Float32Array() } = windowBatch(
    MANIFEST,
    melWindow(AUDIO, window, { start: 90, own: 10, rows: ROWS }),
  );
  expect(later[20 + 7]).toBe(value(7, 90));
  expect([...later.subarray(0, 20), ...later.subarray(5 * 80 + 20)].every((each) => each === 0)).toBe(true);
  expect(attending(MANIFEST, { positions: [4, 5] } as unknown as Batch, { rows: 50 })).toMatchObject({
    source_positions: [49, 49],
    source_page_indptr: [0, 4],
    source_page_ids: [0, 1, 2, 3],
  });
});

test("a token is drawn as often as its probability says", () => {
  const scores = Float32Array.from([0.1, 0.6, 0, 0.3], Math.log);
  const counts = [0, 0, 0, 0];
  for (let index = 0; index < 4000; index++) {
    const token = choose(scores, 1, drawAt(7, index));
    counts[token] = Number(counts[token]) + 1;
  }
  for (const [token, share] of [0.1, 0.6, 0, 0.3].entries())
    expect(Math.abs(Number(counts[token]) / 4000 - share)).toBeLessThan(0.03);
  expect(counts[2]).toBe(0);
  expect(choose(scores, 0, 0)).toBe(1);
  expect(() => choose(new Float32Array(3).fill(-Infinity), 0, 0)).toThrow(DeviceError);
});

test("tokens that repeat themselves are compressed, with the bytes that the vocabulary needs", async () => {
  const tokens = [...Array.from({ length: 20 }, () => [5, 6, 7]).flat(), 200];
  const ratio = await compressionRatio(tokens, 51_865);
  // Python's zlib makes 19 bytes of the 122, another one may need one more or less.
  expect(Math.abs(ratio - 122 / 19)).toBeLessThan(0.4);
  expect(await compressionRatio([1, 2, 3], 51_865)).toBeLessThan(0.5);
});

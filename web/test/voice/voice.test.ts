// Conversations with a transcriber, a model and a speaker that do what the tests say.

import { describe, expect, test } from "vitest";

import type { ChatCompletionChunk } from "../../src/api/types.js";
import { RequestError } from "../../src/errors.js";
import type { Speaker } from "../../src/voice/speaker.js";
import type { VoiceEvent, VoiceOptions, VoiceState } from "../../src/voice/voice.js";
import { createVoice } from "../../src/voice/voice.js";
import { waitFor } from "../wait_for.js";

const RATE = 16_000;
const BLOCK = 320;

/** A microphone: blocks of 20 ms that the test pushes. */
class Microphone {
  readonly #blocks: Float32Array[] = [];
  #wake = (): void => undefined;
  #isOver = false;
  #time = 0;

  /** Blocks of a voice, or of a quiet room. Resolves when they were heard. */
  async say(ms: number, level: number): Promise<void> {
    for (let block = 0; block < ms / 20; block++) {
      this.#blocks.push(
        Float32Array.from({ length: BLOCK }, () => level * Math.sin((2 * Math.PI * 200 * this.#time++) / RATE)),
      );
      this.#wake();
      await new Promise((resolve) => setTimeout(resolve, 0));
    }
  }

  speak = (ms: number): Promise<void> => this.say(ms, 0.3);
  rest = (ms: number): Promise<void> => this.say(ms, 0.0005);

  end(): void {
    this.#isOver = true;
    this.#wake();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Float32Array, void, undefined> {
    for (;;) {
      const block = this.#blocks.shift();
      if (block !== undefined) yield block;
      else if (this.#isOver) return;
      else await new Promise<void>((resolve) => (this.#wake = resolve));
    }
  }
}

/** Speaks when the test lets it. */
class FakeSpeaker implements Speaker {
  readonly prepared: string[] = [];
  readonly spoken: string[] = [];
  readonly stopped: string[] = [];
  #finish: (() => void)[] = [];

  prepare(text: string): ReturnType<Speaker["prepare"]> {
    this.prepared.push(text);
    return Promise.resolve({
      play: ({ signal, onSound }) =>
        new Promise<void>((resolve, reject) => {
          this.spoken.push(text);
          onSound();
          this.#finish.push(resolve);
          signal.addEventListener("abort", () => {
            this.stopped.push(text);
            reject(signal.reason as Error);
          });
        }),
    });
  }

  /** The sentence that is spoken ends. */
  finish(): void {
    this.#finish.splice(0).forEach((resolve) => {
      resolve();
    });
  }
}

type Piece = string | { readonly withdraw: true };

function chunk(piece: Piece): ChatCompletionChunk {
  const isText = typeof piece === "string";
  return {
    choices: [{ index: 0, delta: isText ? { content: piece } : {}, finish_reason: null }],
    ...(isText ? {} : { route: { side: "far", switched_at: 0 } }),
  } as unknown as ChatCompletionChunk;
}

interface Setup {
  readonly microphone: Microphone;
  readonly speaker: FakeSpeaker;
  readonly events: VoiceEvent[];
  readonly states: VoiceState[];
  readonly voice: ReturnType<typeof createVoice>;
  readonly over: Promise<void>;
  /** The lengths of the sounds that were transcribed, in seconds. */
  readonly transcribed: number[];
  readonly requests: unknown[];
}

function start(
  answers: readonly (readonly Piece[] | Error)[],
  texts: readonly string[],
  more: Partial<VoiceOptions> = {},
): Setup {
  const microphone = new Microphone();
  const speaker = new FakeSpeaker();
  const events: VoiceEvent[] = [];
  const states: VoiceState[] = [];
  const transcribed: number[] = [];
  const requests: unknown[] = [];
  const waiting = [...texts];
  const voice = createVoice({
    transcriber: {
      transcribe: (({ samples }: { readonly samples: Float32Array }) => {
        transcribed.push(samples.length / RATE);
        return Promise.resolve({ text: waiting.shift() ?? "", language: "en", segments: [] });
      }) as unknown as VoiceOptions["transcriber"]["transcribe"],
    },
    chat: {
      chat: {
        completions: {
          create: async (params, { signal }) => {
            const answer = answers[requests.length] ?? [];
            requests.push(params);
            await Promise.resolve();
            if (answer instanceof Error) throw answer;
            return (async function* () {
              for (const piece of answer) {
                signal.throwIfAborted();
                await Promise.resolve();
                yield chunk(piece);
              }
            })();
          },
        },
      },
    },
    speaker,
    partialMs: null,
    onEvent: (event) => {
      events.push(event);
      if (event.type === "state") states.push(event.state);
    },
    ...more,
  });
  return { microphone, speaker, events, states, voice, transcribed, requests, over: voice.run(microphone) };
}

const of = <T extends VoiceEvent["type"]>(events: readonly VoiceEvent[], type: T) =>
  events.filter((event): event is Extract<VoiceEvent, { type: T }> => event.type === type);

describe("a conversation by voice", () => {
  test("speaks the first sentence while the rest is written, and says how long it took", async () => {
    const { microphone, speaker, events, states, voice, over, transcribed } = start(
      [["The sky is ", "blue. It", " scatters light. ", "Yes"]],
      ["why is the sky blue"],
    );
    await microphone.rest(600);
    await microphone.speak(800);
    await microphone.rest(800);
    await waitFor(() => {
      expect(speaker.spoken).toEqual(["The sky is blue."]);
    });
    // The next one is made meanwhile, and no more.
    await waitFor(() => {
      expect(speaker.prepared).toHaveLength(2);
    });
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect(speaker.prepared).toEqual(["The sky is blue.", "It scatters light."]);
    speaker.finish();
    await waitFor(() => {
      expect(speaker.spoken).toHaveLength(2);
    });
    speaker.finish();
    await waitFor(() => {
      expect(speaker.spoken).toHaveLength(3);
    });
    speaker.finish();
    await waitFor(() => {
      expect(voice.state).toBe("listening");
    });
    expect(states).toEqual(["listening", "hearing", "thinking", "speaking", "listening"]);
    const [turn] = of(events, "turn");
    expect(turn?.interrupted).toBe(false);
    const { silenceMs = 0, transcriptMs, firstTextMs, firstSoundMs } = turn?.timings ?? {};
    expect(silenceMs).toBeGreaterThanOrEqual(700);
    expect(silenceMs).toBeLessThan(900);
    expect([silenceMs, transcriptMs, firstTextMs, firstSoundMs]).toEqual(
      [silenceMs, transcriptMs, firstTextMs, firstSoundMs].sort((a, b) => Number(a) - Number(b)),
    );
    // What was said, and some silence before and after it.
    expect(transcribed[0]).toBeGreaterThan(0.8 + 0.25 + 0.65);
    expect(transcribed[0]).toBeLessThan(0.8 + 0.45 + 0.8);
    expect(voice.messages).toEqual([
      { role: "user", content: "why is the sky blue" },
      { role: "assistant", content: "The sky is blue. It scatters light. Yes" },
    ]);
    microphone.end();
    await over;
    expect(voice.state).toBe("off");
  });

  test("who speaks stops the answer, whose heard sentences stay in the conversation", async () => {
    const { microphone, speaker, events, states, voice, over, requests } = start(
      [["One. ", "Two. ", "Three. ", "Four."], ["Good. "]],
      ["count", "stop it"],
    );
    await microphone.rest(600);
    await microphone.speak(500);
    await microphone.rest(800);
    await waitFor(() => {
      expect(voice.state).toBe("speaking");
    });
    // A short sound is none.
    await microphone.speak(120);
    await microphone.rest(300);
    expect(voice.state).toBe("speaking");
    await microphone.speak(500);
    expect(voice.state).toBe("hearing");
    expect(speaker.stopped).toEqual(["One."]);
    await microphone.rest(800);
    await waitFor(() => {
      expect(speaker.spoken).toEqual(["One.", "Good."]);
    });
    expect(of(events, "turn").map(({ interrupted }) => interrupted)).toEqual([true]);
    expect(requests[1]).toMatchObject({
      messages: [
        { role: "user", content: "count" },
        { role: "assistant", content: "One." },
        { role: "user", content: "stop it" },
      ],
    });
    expect(states.slice(-3)).toEqual(["hearing", "thinking", "speaking"]);
    voice.stop();
    microphone.end();
    await over;
  });

  test("who goes on before a sound of the answer is heard says one thing", async () => {
    let release = (): void => undefined;
    const held = new Promise<void>((resolve) => (release = resolve));
    const lengths: number[] = [];
    const { microphone, speaker, voice, over, events } = start([["Paris."]], [], {
      transcriber: {
        transcribe: (async ({ samples }: { readonly samples: Float32Array }) => {
          lengths.push(samples.length / RATE);
          if (lengths.length === 1) await held;
          return { text: "the capital of France", language: "en", segments: [] };
        }) as unknown as VoiceOptions["transcriber"]["transcribe"],
      },
    });
    await microphone.rest(600);
    await microphone.speak(500);
    await microphone.rest(800);
    expect(voice.state).toBe("thinking");
    await microphone.speak(500);
    expect(voice.state).toBe("hearing");
    release();
    await microphone.rest(800);
    await waitFor(() => {
      expect(speaker.spoken).toEqual(["Paris."]);
    });
    expect(lengths).toHaveLength(2);
    expect(lengths[1]).toBeGreaterThan(Number(lengths[0]) + 1);
    expect(of(events, "heard")).toHaveLength(1);
    microphone.end();
    speaker.finish();
    await over;
  });

  test("noise without words is not answered, and an answer that fails leaves the conversation running", async () => {
    const { microphone, voice, over, events, requests } = start([new RequestError("too long")], ["", "hello"]);
    await microphone.rest(600);
    for (const count of [0, 1]) {
      await microphone.speak(400);
      await microphone.rest(800);
      await waitFor(() => {
        expect(voice.state).toBe("listening");
      });
      expect(requests).toHaveLength(count);
    }
    expect(of(events, "error").map(({ error }) => (error as Error).message)).toEqual(["too long"]);
    expect(of(events, "heard").map(({ text }) => text)).toEqual(["hello"]);
    microphone.end();
    await over;
  });

  test("an answer that a router starts anew is spoken anew", async () => {
    const { microphone, speaker, over, events, voice } = start(
      [["Perhaps. ", "I", { withdraw: true }, "Surely. "]],
      ["is it so"],
    );
    await microphone.rest(600);
    await microphone.speak(400);
    await microphone.rest(800);
    await waitFor(() => {
      expect(speaker.spoken.at(-1)).toBe("Surely.");
    });
    speaker.finish();
    await waitFor(() => {
      expect(of(events, "turn")).toHaveLength(1);
    });
    expect(of(events, "answer").at(-1)?.text).toBe("Surely. ");
    expect(voice.messages.at(-1)).toEqual({ role: "assistant", content: "Surely. " });
    microphone.end();
    await over;
  });

  test("partial transcripts come one at a time, at most as often as is asked", async () => {
    const running: number[] = [];
    let most = 0;
    const { microphone, over, events } = start([], [], {
      partialMs: 60,
      transcriber: {
        transcribe: (async ({ samples }: { readonly samples: Float32Array }) => {
          running.push(samples.length);
          most = Math.max(most, running.length);
          await new Promise((resolve) => setTimeout(resolve, 30));
          running.pop();
          return { text: `${samples.length} samples`, language: "en", segments: [] };
        }) as unknown as VoiceOptions["transcriber"]["transcribe"],
      },
    });
    await microphone.rest(600);
    const begun = performance.now();
    while (of(events, "partial").length < 3) {
      await microphone.speak(20);
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
    // Each waits, and takes a while.
    expect(performance.now() - begun).toBeGreaterThanOrEqual(3 * 60);
    expect(most).toBe(1);
    const lengths = of(events, "partial").map(({ text }) => Number.parseInt(text, 10));
    expect(lengths).toEqual([...lengths].sort((a, b) => a - b));
    microphone.end();
    await over;
  });

  test("what is missing is refused by name", () => {
    expect(() => createVoice({ speaker: new FakeSpeaker() } as unknown as VoiceOptions)).toThrow(
      "'transcriber' is missing",
    );
  });
});

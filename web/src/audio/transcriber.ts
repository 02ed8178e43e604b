// Transcribes sound: window after window, each with its text at the first temperature that gives a good one.
// `compiler/runtime/audio/transcribe.py` does the same; what both decide is in src/shared/transcription.

import type { Checks } from "../api/params.js";
import { readParams, signal } from "../api/params.js";
import type { Gate } from "../engine/gate.js";
import { drawAt } from "../engine/resolved_sampling.js";
import { BundleError, DeviceError, RequestError } from "../errors.js";
import type { LanguageToken, Manifest } from "../runtime/manifest.js";
import type { Runner } from "../runtime/runner.js";
import { addTokens, emptyBatch, settingsRow } from "../runtime/batch.js";
import { nextTokens } from "../shared/transcription/next_tokens.js";
import type { SpeechModel, TranscriptionTask } from "../shared/transcription/speech.js";
import { checkTask, firstTimestamp, transcriptionPrompt } from "../shared/transcription/speech.js";
import type { Word } from "../shared/transcription/ctc.js";
import { TEMPERATURES, THRESHOLDS, cutWindow, judgeText } from "../shared/transcription/windows.js";
import type { Tokenizer } from "../text/tokenizer.js";
import { attending, audioOf } from "./hearing.js";
import { Listener } from "./listener.js";
import type { AudioWindow, Reading } from "./readings.js";
import { readingOf } from "./readings.js";
import type { SoundSource } from "./read_sound.js";
import { MAX_SECONDS, readSound } from "./read_sound.js";
import { SAMPLE_RATE } from "./resample.js";
import { allowed, choose, compressionRatio, logprobOf } from "./scores.js";
import { Turns } from "./turns.js";

export interface TranscribeOptions {
  /** Yield segments as soon as they are known. */
  readonly stream?: boolean | undefined;
  /** The code of the language, such as "en"; by default, the model detects it. */
  readonly language?: string | undefined;
  /** "translate": into English. */
  readonly task?: "transcribe" | "translate" | undefined;
  /**
   * Whether the model writes timestamps, which it does for sound that is longer than a window anyway. One that has none
   * makes a segment of each window.
   */
  readonly timestamps?: boolean | undefined;
  /** A text that precedes, whose style and names the transcript continues. */
  readonly prompt?: string | undefined;
  /** The only temperature; by default several from 0 on, until the text of a window is good. */
  readonly temperature?: number | undefined;
  readonly seed?: number | undefined;
  /** Longer sound is refused; 3600 by default. */
  readonly maxSeconds?: number | undefined;
  readonly signal?: AbortSignal | undefined;
}

export const OPTIONS: Checks = {
  stream: "boolean",
  language: "string",
  task: "=transcribe|translate",
  timestamps: "boolean",
  prompt: "string",
  temperature: "number 0..",
  seed: "integer 0..",
  maxSeconds: "number 0<..",
  signal,
} satisfies Record<keyof TranscribeOptions, unknown>;

/** A part of a transcript, from ``start`` to ``end`` in seconds; ``seek`` is the first frame of 10 ms of its window. */
export interface TranscriptSegment {
  readonly id: number;
  readonly seek: number;
  readonly start: number;
  readonly end: number;
  readonly text: string;
  readonly tokens: readonly number[];
  readonly temperature: number;
  readonly avg_logprob: number;
  readonly compression_ratio: number;
  readonly no_speech_prob: number;
  /** Of models that know when each word is said. */
  readonly words?: readonly Word[];
}

/** As OpenAI's API answers with response_format "verbose_json". ``language`` is null for models of one language. */
export interface Transcript {
  readonly task: "transcribe" | "translate";
  readonly language: string | null;
  /** In seconds. */
  readonly duration: number;
  readonly text: string;
  readonly segments: readonly TranscriptSegment[];
}

/** With ``stream``, the generator returns the transcript at its end. */
export interface Transcribe {
  (
    audio: SoundSource,
    options: TranscribeOptions & { readonly stream: true },
  ): Promise<AsyncGenerator<TranscriptSegment, Transcript, undefined>>;
  (audio: SoundSource, options?: TranscribeOptions & { readonly stream?: false | undefined }): Promise<Transcript>;
}

/** A loaded model of sound, and the device that runs it. */
export interface TranscriberParts {
  readonly manifest: Pick<Manifest, "model" | "spec" | "speech" | "ctc" | "context" | "page_size">;
  readonly tokenizer: Pick<Tokenizer, "encode" | "decode">;
  readonly runner: () => Partial<Pick<Runner, "listen" | "forwardLogits" | "encode">> & Pick<Runner, "limits">;
  /** Opens the model on another device after the device has failed, or throws. */
  readonly replaceRunner: () => Promise<unknown>;
  readonly gate: Gate;
}

/** The text of a window: its tokens without the end, and their quality. */
interface WindowText {
  readonly tokens: readonly number[];
  readonly meanLogprob: number;
  readonly compressionRatio: number;
}

/** What a window of a transcript is computed with. */
interface Job extends Omit<TranscriptionTask, "language"> {
  readonly reading: Reading;
  readonly temperatures: readonly number[];
  readonly signal: AbortSignal;
  /** The next number in [0, 1). */
  readonly draw: () => number;
}

/** A window's segments without their numbers, and the frames to the next window. */
interface Window {
  readonly language: string | null;
  readonly segments: readonly Omit<TranscriptSegment, "id">[];
  readonly advance: number;
}

export class Transcriber {
  readonly #parts: TranscriberParts;
  readonly #model: SpeechModel;
  readonly #turns: Turns;
  readonly #listener: Listener;
  /** The text of the last sound's first window: a good guess if the sound has grown since. */
  #opening: readonly number[] = [];
  /** The window to which tokens attend. */
  #heard: Pick<AudioWindow, "rows"> = { rows: 0 };

  /** Throws BundleError for a bundle that names no tokens of speech. */
  constructor(parts: TranscriberParts) {
    const { speech, spec, context, model } = parts.manifest;
    if (speech === null || spec.audio === null)
      throw new BundleError(`manifest.json: ${model} has no tokens of speech; compile the bundle again`);
    this.#parts = parts;
    this.#turns = new Turns(parts);
    this.#listener = new Listener(parts.manifest);
    this.#model = { ...speech, ends: spec.eos_token_ids, rows: spec.audio.positions, context };
  }

  /**
   * The samples are read before this resolves. Throws RequestError for a language or task that the model does not have,
   * and the errors of `readSound`; the generator throws DeviceError and the signal's reason.
   */
  readonly transcribe = (async (audio: SoundSource, unchecked?: TranscribeOptions) => {
    const options = readParams(unchecked ?? {}, OPTIONS);
    const { language = null, task = "transcribe", prompt = "", maxSeconds = MAX_SECONDS } = options;
    checkTask(this.#model, language, task === "translate");
    if (prompt.trim() !== "" && this.#model.previous === null)
      throw new RequestError(
        `${this.#parts.manifest.model} has no token for a text that precedes; leave the prompt out`,
        {
          param: "prompt",
        },
      );
    const { signal: until = new AbortController().signal } = options;
    const samples = await readSound(audio, { maxSeconds, signal: until });
    const segments = this.#segments(samples, options, until);
    if (options.stream) return segments;
    for (;;) {
      const next = await segments.next();
      if (next.done) return next.value;
    }
  }) as Transcribe;

  async *#segments(
    samples: Float32Array<ArrayBuffer>,
    options: TranscribeOptions,
    until: AbortSignal,
  ): AsyncGenerator<TranscriptSegment, Transcript, undefined> {
    const { task = "transcribe", prompt = "", temperature, seed = 0 } = options;
    const reading = readingOf(samples, audioOf(this.#parts.manifest), this.#model.seconds);
    let drawn = 0;
    const job: Job = {
      reading,
      translate: task === "translate",
      timestamps: (options.timestamps === true || reading.isLong) && this.#model.no_timestamps !== null,
      previous: prompt.trim() === "" ? [] : this.#parts.tokenizer.encode(` ${prompt.trim()}`, false),
      temperatures: temperature === undefined ? TEMPERATURES : [temperature],
      signal: until,
      draw: () => drawAt(seed, drawn++),
    };
    let language = options.language ?? null;
    const segments: TranscriptSegment[] = [];
    for (let seek = 0; seek < reading.count;) {
      const [from, spoken] = [seek, language];
      const window = await this.#turns.take(until, () => this.#window(job, from, spoken));
      ({ language } = window);
      for (const found of window.segments) {
        if (found.text.trim() === "") continue;
        until.throwIfAborted();
        const segment = { id: segments.length, ...found };
        segments.push(segment);
        yield segment;
      }
      seek += window.advance;
    }
    const text = segments
      .map((segment) => segment.text)
      .join("")
      .trim();
    return { task, language, duration: samples.length / SAMPLE_RATE, text, segments };
  }

  async #window(job: Job, seek: number, given: string | null): Promise<Window> {
    const model = this.#model;
    const { frames, read } = job.reading.window(seek);
    this.#heard = read;
    await this.#turns.compute(job.signal, async (runner) => this.#listener.listen(runner, read));
    const language = given ?? (await this.#detectLanguage(job));
    const prompt = transcriptionPrompt(model, { ...job, language });
    const start = prompt.indexOf(model.start);
    const logits = await this.#forward(job, prompt, 0, [...new Set([start, prompt.length - 1])]);
    const [first = new Float32Array(), last = first] = logits;
    const noSpeech = model.no_speech === null ? 0 : Math.exp(logprobOf(first, model.no_speech));
    for (const [index, temperature] of job.temperatures.entries()) {
      const guess = seek === 0 && temperature === 0 ? this.#opening : [];
      const text = await this.#text(job, prompt, last, { temperature, guess });
      if (seek === 0 && temperature === 0) this.#opening = text.tokens;
      const verdict = judgeText({ ...text, noSpeech }, THRESHOLDS);
      if (verdict === "skip") return { language, segments: [], advance: frames };
      if (verdict === "retry" && index + 1 < job.temperatures.length) continue;
      const { segments, advance } = cutWindow(model, text.tokens, { seek, frames });
      const quality = {
        temperature,
        avg_logprob: text.meanLogprob,
        compression_ratio: text.compressionRatio,
        no_speech_prob: noSpeech,
      };
      const written = segments.map(({ start: from, end, tokens }) => {
        return { seek, start: from, end, text: this.#wordsOf(tokens), tokens, ...quality };
      });
      return { language, segments: written, advance };
    }
    throw new Error("no temperature was tried");
  }

  /** The text without timestamps. A model that has none writes no space before it, as Whisper does. */
  #wordsOf(tokens: readonly number[]): string {
    const first = firstTimestamp(this.#model);
    const text = this.#parts.tokenizer.decode(tokens.filter((token) => token < first - 1));
    return first < Infinity || text.trim() === "" ? text : ` ${text.trim()}`;
  }

  /** The language whose token is likeliest after the start; null for a model that names none. */
  async #detectLanguage(job: Job): Promise<string | null> {
    const { languages, start } = this.#model;
    if (languages.length < 2) return languages[0]?.code ?? null;
    const [logits = new Float32Array()] = await this.#forward(job, [start], 0, [0]);
    const likelihood = ({ token }: LanguageToken): number => Number(token === null ? -Infinity : logits[token]);
    return languages.reduce((best, each) => (likelihood(each) > likelihood(best) ? each : best)).code;
  }

  /**
   * A text after the prompt, whose last row has these logits. While it is the one that was guessed, several tokens are
   * computed at once.
   */
  async #text(
    job: Job,
    prompt: readonly number[],
    logits: Float32Array,
    { temperature, guess }: { readonly temperature: number; readonly guess: readonly number[] },
  ): Promise<WindowText> {
    const model = this.#model;
    const written: number[] = [];
    // The logits behind the last token, and those behind the tokens that are guessed to follow it.
    let following: readonly Float32Array[] = [logits];
    let [sum, isGuessed, size] = [0, guess.length > 0, 1];
    for (const room = model.context - prompt.length; written.length < room;) {
      const [row = logits, ...rest] = following;
      const scores = allowed(row, nextTokens(model, written, job.timestamps, row.length), model);
      const token = choose(scores, temperature, temperature === 0 ? 0 : job.draw());
      sum += logprobOf(scores, token);
      isGuessed &&= guess[written.length] === token;
      written.push(token);
      if (model.ends.includes(token) || written.length === room) break;
      following = isGuessed ? rest : [];
      if (following.length > 0) continue;
      const count = written.length;
      // More at once as long as the guess is right.
      size = Math.min(2 * size, this.#parts.runner().limits.rows ?? 1, room - count + 1);
      const own = [token, ...(isGuessed ? guess.slice(count, count + size - 1) : [])];
      following = await this.#forward(job, own, prompt.length + count - 1, [...own.keys()]);
    }
    return {
      tokens: written.filter((token) => !model.ends.includes(token)),
      meanLogprob: written.length === 0 ? 0 : sum / written.length,
      compressionRatio: await compressionRatio(written, logits.length),
    };
  }

  /** The logits of some rows of tokens that follow the first ``start`` ones. */
  async #forward(
    job: Job,
    tokens: readonly number[],
    start: number,
    rows: readonly number[],
  ): Promise<readonly Float32Array[]> {
    const { manifest } = this.#parts;
    const { page_size: pageSize } = manifest;
    const found: Float32Array[] = [];
    const { tokens: most } = this.#parts.runner().limits;
    for (let first = 0; first < tokens.length; first += most) {
      const own = tokens.slice(first, first + most);
      const pages = Math.ceil((start + first + own.length) / pageSize);
      const batch = emptyBatch();
      addTokens(batch, own, start + first, [Array.from({ length: pages }, (_, index) => index)], pageSize);
      for (const row of rows.filter((each) => each >= first && each < first + own.length)) {
        batch.sample_rows.push(row - first);
        batch.sample_slots.push(-1, 0);
        batch.sample_settings.push(...settingsRow({}));
      }
      const heard = attending(manifest, batch, this.#heard);
      const logits =
        (await this.#turns.compute(job.signal, async (runner) => runner.forwardLogits?.(heard))) ?? new Float32Array();
      if (!logits.every(Number.isFinite))
        throw new DeviceError(
          "The device computed logits that are not numbers; load the model again, or report it with the device's name",
        );
      const size = logits.length / Math.max(1, batch.sample_rows.length);
      for (let row = 0; row < batch.sample_rows.length; row++) found.push(logits.slice(row * size, (row + 1) * size));
    }
    return found;
  }
}

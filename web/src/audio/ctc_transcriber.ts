// Transcribes sound with an encoder whose rows name tokens: window after window, the likeliest token of each row.
// `compiler/runtime/audio/ctc.py` does the same; what both decide is in src/shared/transcription/ctc.ts.

import { readParams } from "../api/params.js";
import { BundleError, DeviceError, RequestError } from "../errors.js";
import { largestOf, logSumExp } from "../runtime/log_sum_exp.js";
import type { ConformerSpec } from "../runtime/manifest.js";
import type { NamedRows, RowWindow, TokenSpan } from "../shared/transcription/ctc.js";
import { rowWindows, withRows, wordSegments } from "../shared/transcription/ctc.js";
import { framesBatch } from "./frame_rows.js";
import { HOP } from "./log_mel.js";
import { FEWEST_SAMPLES, parakeetFrames } from "./parakeet_frames.js";
import { MAX_SECONDS, readSound } from "./read_sound.js";
import type { SoundSource } from "./read_sound.js";
import { SAMPLE_RATE } from "./resample.js";
import { compressionRatio } from "./scores.js";
import type { Transcribe, TranscribeOptions, TranscriberParts, Transcript, TranscriptSegment } from "./transcriber.js";
import { OPTIONS } from "./transcriber.js";
import { Turns } from "./turns.js";

/** What an encoder of sound does not take, by the option that asks for it. */
const WITHOUT = {
  language: "takes no language: it writes what it hears; leave the language out",
  task: "does not translate; transcribe, or use a Whisper of several languages",
  prompt: "continues no text that precedes; leave the prompt out",
  temperature: "chooses the likeliest tokens at every temperature; leave the temperature out",
} satisfies Partial<Record<keyof TranscribeOptions, string>>;

export class CtcTranscriber {
  readonly #parts: TranscriberParts;
  readonly #turns: Turns;
  readonly #conformer: ConformerSpec;
  readonly #blank: number;

  /** Throws BundleError for a bundle of another kind. */
  constructor(parts: TranscriberParts) {
    const { ctc, spec, model } = parts.manifest;
    if (ctc === null || spec.conformer === null)
      throw new BundleError(`manifest.json: ${model} is no encoder of sound; compile the bundle again`);
    this.#parts = parts;
    this.#turns = new Turns(parts);
    this.#conformer = spec.conformer;
    this.#blank = ctc.blank;
  }

  /**
   * The samples are read before this resolves. Throws RequestError for what the model does not do, and the errors of
   * `readSound`; the generator throws DeviceError and the signal's reason.
   */
  readonly transcribe = (async (audio: SoundSource, unchecked?: TranscribeOptions) => {
    const options = readParams(unchecked ?? {}, OPTIONS);
    for (const [name, why] of Object.entries(WITHOUT)) {
      const value = options[name as keyof typeof WITHOUT];
      if (value !== undefined && value !== "" && value !== "transcribe" && value !== 0)
        throw new RequestError(`${this.#parts.manifest.model} ${why}`, { param: name });
    }
    const { maxSeconds = MAX_SECONDS, signal: until = new AbortController().signal } = options;
    const samples = await readSound(audio, { maxSeconds, signal: until });
    const segments = this.#segments(samples, until);
    if (options.stream) return segments;
    for (;;) {
      const next = await segments.next();
      if (next.done) return next.value;
    }
  }) as Transcribe;

  async *#segments(
    samples: Float32Array<ArrayBuffer>,
    until: AbortSignal,
  ): AsyncGenerator<TranscriptSegment, Transcript, undefined> {
    const { tokenizer, manifest } = this.#parts;
    const rowSamples = this.#conformer.frames * HOP;
    const soundSeconds = samples.length / SAMPLE_RATE;
    const padded = new Float32Array(Math.max(FEWEST_SAMPLES, samples.length));
    padded.set(samples);
    const windows = rowWindows(padded.length, { rows: manifest.context, rowSamples, frameSamples: HOP });
    const segments: TranscriptSegment[] = [];
    let spans: readonly TokenSpan[] = [];
    for (const [index, window] of windows.entries()) {
      const named = await this.#turns.take(until, () => this.#named(padded, window, until));
      spans = withRows(spans, named, window.start / rowSamples + window.first, this.#blank);
      const tokens = spans.map(({ token }) => token);
      const texts = tokens.map((_, last) => tokenizer.decode(tokens.slice(0, last + 1)));
      const cut = wordSegments(spans, texts, rowSamples / SAMPLE_RATE, soundSeconds, index + 1 === windows.length);
      spans = spans.slice(cut.used);
      for (const { logprob, ...found } of cut.segments) {
        until.throwIfAborted();
        const segment = {
          id: segments.length,
          seek: window.start / HOP,
          ...found,
          temperature: 0,
          avg_logprob: logprob,
          compression_ratio: await compressionRatio(found.tokens, manifest.spec.vocab_size),
          // The probability that nothing is said is not known.
          no_speech_prob: 0,
        };
        segments.push(segment);
        yield segment;
      }
    }
    const text = segments
      .map((segment) => segment.text)
      .join("")
      .trim();
    return { task: "transcribe", language: null, duration: soundSeconds, text, segments };
  }

  /** What the rows of a window name that it keeps. */
  async #named(samples: Float32Array, { start, end, first, last }: RowWindow, until: AbortSignal): Promise<NamedRows> {
    const frames = parakeetFrames(samples.subarray(start, end), this.#conformer.mel_bins);
    const batch = framesBatch(frames, this.#conformer);
    const scores = await this.#turns.compute(until, async (runner) => runner.encode?.(batch));
    const size = this.#parts.manifest.spec.vocab_size;
    if (scores === undefined || !scores.every(Number.isFinite))
      throw new DeviceError(
        "The device computed scores that are not numbers; load the model again, or report it with the device's name",
      );
    const [tokens, logprobs]: [number[], number[]] = [[], []];
    for (let row = first; row < last; row++) {
      const own = scores.subarray(row * size, (row + 1) * size);
      const largest = largestOf(own);
      tokens.push(own.indexOf(largest));
      logprobs.push(largest - logSumExp(own));
    }
    return { tokens, logprobs };
  }
}

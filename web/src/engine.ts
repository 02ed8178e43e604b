// The engine: a bundle's address flows in, answers flow out as text. It joins the runtime, the generation loop and the tokenizer.

import type { FinishReason, TokenOptions } from "./engine/generate_tokens.js";
import { generateTokens } from "./engine/generate_tokens.js";
import { BundleError, RequestError } from "./errors.js";
import type { Bundle } from "./runtime/bundle.js";
import { openBundle } from "./runtime/bundle.js";
import type { DeviceOptions } from "./runtime/device.js";
import { openDevice } from "./runtime/device.js";
import { largestBuffer } from "./runtime/memory.js";
import { readFile } from "./runtime/read_file.js";
import type { RunnerInfo } from "./runtime/runner.js";
import { Runner } from "./runtime/runner.js";
import type { OnBytes, Source } from "./runtime/source.js";
import { httpSource } from "./runtime/source.js";
import type { ActivationDtype } from "./runtime/variants.js";
import type { BundleStore } from "./store/bundle_store.js";
import type { StoredSource } from "./store/stored_source.js";
import { storedSource } from "./store/stored_source.js";
import type { Message } from "./text/chat_template.js";
import { TextStream } from "./text/text_stream.js";
import { Tokenizer } from "./text/tokenizer.js";

/**
 * "manifest": it is read. "download": bytes have to come over the network still, here or in another tab. "upload": all others come from the
 * store and go to the device. Kernels compile meanwhile, so both counts move at once. "ready": the engine is there.
 */
export interface LoadProgress {
  readonly phase: "manifest" | "download" | "upload" | "ready";
  /** Of weights and tokenizer, from wherever. It goes back where a file proves damaged and is fetched again. */
  readonly loadedBytes: number;
  /** Of these, what was in the store. */
  readonly storedBytes: number;
  readonly totalBytes: number;
  readonly compiledKernels: number;
  readonly totalKernels: number;
}

export interface LoadOptions extends DeviceOptions {
  readonly onProgress?: ((progress: LoadProgress) => void) | undefined;
  readonly signal?: AbortSignal | undefined;
  /** Where files are kept: in the browser's store, nowhere, or in one of its own. True where the bundle is given by its address and the browser can. */
  readonly store?: boolean | BundleStore | undefined;
}

export interface GenerateOptions extends TokenOptions {
  /** Continue the text itself, without the chat template. */
  readonly raw?: boolean | undefined;
}

/** tokensPerSecond counts from the first token on; null where there was only one. */
export interface Timings {
  readonly promptTokens: number;
  readonly completionTokens: number;
  readonly timeToFirstTokenMs: number;
  readonly tokensPerSecond: number | null;
}

/** A token's ``text`` is "" while a character is incomplete; what is left at the end comes with "done". */
export type GenerationEvent =
  | { readonly type: "token"; readonly text: string; readonly tokenId: number }
  | { readonly type: "done"; readonly text: string; readonly finishReason: FinishReason; readonly timings: Timings };

export interface EngineInfo extends RunnerInfo {
  readonly model: string;
  readonly quantization: string;
  readonly context: number;
  /** The adapter as the browser describes it. */
  readonly adapter: string;
  readonly activation: ActivationDtype;
  /** Of weights and tokenizer: what a load downloads where nothing is stored. */
  readonly downloadBytes: number;
}

export class Engine {
  #busy = false;

  private constructor(
    private readonly runner: Runner,
    private readonly tokenizer: Tokenizer,
    readonly info: EngineInfo,
  ) {}

  /** Load the bundle in a folder of a web server. Throws BundleError, DeviceError, StorageError, or the signal's reason. */
  static async load(bundle: string | URL | Source, options: LoadOptions = {}): Promise<Engine> {
    const isAddress = typeof bundle === "string" || bundle instanceof URL;
    const source = isAddress ? httpSource(bundle) : bundle;
    const signal = options.signal ?? new AbortController().signal;
    const stored = await storedSource(source, options.store ?? isAddress, signal);
    try {
      const engine = await Engine.loadFrom(stored ?? source, stored, signal, options);
      // A store that could not note it has no worse effect than that the next load asks the network.
      await stored?.finish().catch(() => undefined);
      return engine;
    } finally {
      await stored?.close().catch(() => undefined);
    }
  }

  private static async loadFrom(source: Source, stored: StoredSource | null, signal: AbortSignal, options: LoadOptions): Promise<Engine> {
    let progress: LoadProgress = { phase: "manifest", loadedBytes: 0, storedBytes: 0, totalBytes: 0, compiledKernels: 0, totalKernels: 0 };
    const report = (change: Partial<LoadProgress>): void => {
      progress = { ...progress, ...change };
      options.onProgress?.(progress);
    };
    report({});
    const opened = await openBundle(source, signal);
    const { manifest } = opened;
    let downloads = stored === null || (await stored.begin(manifest)) > 0;
    const device = await openDevice(manifest, options, (activation) => largestBuffer(manifest, activation));
    const totalBytes = [...manifest.shards, ...manifest.files].reduce((sum, { size }) => sum + size, 0);
    const onBytes: OnBytes = (count, origin) => {
      if (origin === "network") downloads = true;
      const loadedBytes = progress.loadedBytes + count;
      const storedBytes = progress.storedBytes + (origin === "store" ? count : 0);
      report({ loadedBytes, storedBytes, phase: downloads && loadedBytes < totalBytes ? "download" : "upload" });
    };
    report({ phase: downloads ? "download" : "upload", totalBytes });
    const onKernel = (compiledKernels: number, totalKernels: number): void => {
      report({ compiledKernels, totalKernels });
    };
    // Where one fails, the other stops.
    const failed = new AbortController();
    const either = AbortSignal.any([signal, failed.signal]);
    const stop = (error: unknown): never => {
      failed.abort(error);
      throw error;
    };
    const [runner, tokenizer] = await Promise.allSettled([
      Runner.create(opened, device, { signal: either, onBytes, onKernel }).catch(stop),
      loadTokenizer(opened, either, onBytes).catch(stop),
    ]);
    if (runner.status === "fulfilled" && tokenizer.status === "fulfilled") {
      const { model, quantization, context } = manifest;
      const { adapter, activation } = device;
      const info = { model, quantization, context, adapter, activation, downloadBytes: totalBytes, ...runner.value.info };
      report({ phase: "ready" });
      return new Engine(runner.value, tokenizer.value, info);
    }
    if (runner.status === "fulfilled") runner.value.destroy();
    throw failed.signal.reason as Error;
  }

  /**
   * Answer a chat, or a text as its one message. Yields a "token" for each token and one "done". One answer at a time: leave the loop or abort
   * the signal to end it early. Throws RequestError, DeviceError, or the signal's reason.
   */
  async *generate(prompt: string | readonly Message[], options: GenerateOptions = {}): AsyncGenerator<GenerationEvent, void, undefined> {
    const promptIds = this.promptIds(prompt, options.raw ?? false);
    const stream = new TextStream(this.tokenizer);
    const start = performance.now();
    let first = start;
    let completionTokens = 0;
    const tokens = this.generateTokens(promptIds, options);
    try {
      for (;;) {
        const { done, value } = await tokens.next();
        const now = performance.now();
        if (completionTokens === 0) first = now;
        if (done === true) {
          // A stop token took its time as well.
          const later = value === "stop" ? completionTokens : completionTokens - 1;
          const tokensPerSecond = later > 0 ? (later * 1000) / (now - first) : null;
          const timings = { promptTokens: promptIds.length, completionTokens, timeToFirstTokenMs: first - start, tokensPerSecond };
          yield { type: "done", text: stream.finish(), finishReason: value, timings };
          return;
        }
        completionTokens++;
        yield { type: "token", text: stream.feed(value), tokenId: value };
      }
    } finally {
      await tokens.return("length");
    }
  }

  /** Continue token ids with token ids, without any text. Yields ids, returns why it ended. */
  async *generateTokens(promptIds: readonly number[], options: TokenOptions = {}): AsyncGenerator<number, FinishReason, undefined> {
    if (this.#busy) throw new RequestError("The engine is at another answer; wait for its end, or abort it");
    this.#busy = true;
    try {
      return yield* generateTokens(this.runner, promptIds, options);
    } finally {
      this.#busy = false;
    }
  }

  /** Free the device and all its memory. */
  destroy(): void {
    this.runner.destroy();
  }

  private promptIds(prompt: string | readonly Message[], raw: boolean): readonly number[] {
    if (typeof prompt !== "string") {
      if (raw) throw new RequestError("raw: true takes a text, not a list of messages");
      return this.tokenizer.encodeChat(prompt);
    }
    return raw ? this.tokenizer.encode(prompt) : this.tokenizer.encodeChat([{ role: "user", content: prompt }]);
  }
}

async function loadTokenizer({ manifest, source }: Bundle, signal: AbortSignal, onBytes: OnBytes): Promise<Tokenizer> {
  const { file } = manifest.tokenizer;
  const entry = manifest.files.find((candidate) => candidate.file === file);
  if (entry === undefined) throw new BundleError(`manifest.json: tokenizer.file '${file}' is not in files; compile the bundle again`, { file });
  return new Tokenizer(new TextDecoder().decode(await readFile(source, entry, signal, onBytes)), manifest.tokenizer);
}

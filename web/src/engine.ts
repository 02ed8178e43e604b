// The engine: a loaded bundle that answers. It joins the token engine, the tokenizer and the API's shapes.

import { ChatCompletions } from "./api/chat_completions.js";
import { encodeChat } from "./api/chat_prompt.js";
import { Completions } from "./api/completions.js";
import { Embeddings } from "./api/embeddings.js";
import type { EngineApi, EngineWithSessions } from "./api/engine_api.js";
import type { Model } from "./api/model.js";
import { readParams, shown } from "./api/params.js";
import type { Backend, BackendInfo } from "./backend.js";
import { Embedder } from "./engine/embedder.js";
import { Gate } from "./engine/gate.js";
import type { Completion, GeneratedToken, TokenRequest, TokenSource } from "./engine/request.js";
import type { EngineCounts } from "./engine/token_engine.js";
import { TokenEngine } from "./engine/token_engine.js";
import type { Tuner } from "./engine/tuner.js";
import { DeviceError, RequestError } from "./errors.js";
import type { GenerateOptions, GenerationEvent } from "./generation.js";
import { generationEvents, tokenRequest } from "./generation.js";
import { Grammars } from "./grammar/grammars.js";
import type { BundleAddress, Loaded, LoadOptions } from "./load.js";
import { load, plan } from "./load.js";
import { SESSION_OPTIONS } from "./options.js";
import type { TuningEntry } from "./runtime/manifest.js";
import type { MemoryPlan } from "./runtime/memory_plan.js";
import { sha256 } from "./runtime/read_file.js";
import type { SessionOptions } from "./session.js";
import { Session } from "./session.js";
import type { SessionStorage } from "./store/session_store.js";
import { browserSessions } from "./store/session_store.js";
import type { Message } from "./text/chat_template.js";
import type { Tokenizer } from "./text/tokenizer.js";
import { ToolCallStream } from "./text/tool_call_stream.js";
import type { ToolChoice } from "./text/tools.js";
import { toolGrammar } from "./text/tools.js";

export interface EngineInfo extends BackendInfo {
  readonly model: string;
  /** Why this bundle runs and, of several, no other. */
  readonly reason: string;
  readonly quantization: string;
  /** The most tokens of one sequence. */
  readonly context: number;
  /** Whether it can call tools. */
  readonly tools: boolean;
  /** Of tokenizer.json, in hexadecimal: models with the same one have the same token ids. */
  readonly tokenizerSha256: string | null;
  /** Of weights and tokenizer: what a load downloads where nothing is stored. */
  readonly downloadBytes: number;
}

export class Engine implements EngineWithSessions {
  /** As OpenAI's client has it: chat.completions.create. */
  readonly chat: { readonly completions: ChatCompletions };
  readonly completions: Completions;
  readonly embeddings: Embeddings;
  readonly #loaded: Loaded;
  readonly #tokens: TokenEngine;
  /** Null where the model generates text. */
  readonly #embedder: Embedder | null;
  readonly #tokenizer: Tokenizer;
  readonly #model: Model;
  readonly #closed = new AbortController();
  readonly #gate = new Gate();
  #backend: Backend;
  /** Null where there is nothing to tune. */
  #tuner: Tuner | null;

  constructor(loaded: Loaded) {
    const { manifest, backend, tokenizer } = loaded;
    const { runner } = backend;
    this.#loaded = loaded;
    this.#backend = backend;
    this.#tokenizer = tokenizer;
    const { vocab_size: vocabSize, eos_token_ids: endTokenIds } = manifest.spec;
    const { embedding } = manifest;
    this.#tokens = new TokenEngine(
      runner,
      { vocabSize, endTokenIds, embeds: embedding !== null },
      () => this.#replaceRunner(),
      this.#gate,
    );
    this.#embedder = embedding === null ? null : new Embedder(runner, () => this.#replaceRunner(), this.#gate);
    this.#tuner = backend.startTuning(this.#embedder ?? this.#tokens);
    const format = tokenizer.toolFormat;
    const model: Model = {
      name: manifest.model,
      context: runner.limits.context,
      tokens: this,
      text: tokenizer,
      grammar: new Grammars(loaded.tokenizerJson, manifest.spec, loaded.grammar),
      tools:
        format === null
          ? undefined
          : {
              parser: () => new ToolCallStream(format),
              grammar: (tools, choice) => toolGrammar(format, tools, choice as ToolChoice),
            },
      embeddings:
        this.#embedder === null || embedding === null
          ? undefined
          : { source: this.#embedder, size: manifest.spec.hidden_size, normalize: embedding.normalize },
    };
    this.#model = model;
    this.chat = { completions: new ChatCompletions(model) };
    this.completions = new Completions(model);
    this.embeddings = new Embeddings(model);
  }

  /**
   * Load the bundle in a folder of a web server. Of several, one for WebGPU is taken where this device can run it, else one in ONNX's form.
   * Throws RequestError for options that there are not, BundleError, DeviceError, StorageError, or the signal's reason.
   */
  static async load(bundle: BundleAddress | readonly BundleAddress[], options: LoadOptions = {}): Promise<Engine> {
    return new Engine(await load(bundle, options));
  }

  /** What a bundle would take on this device, by its manifest alone. Throws RequestError, BundleError, DeviceError, or the signal's reason. */
  static async plan(bundle: BundleAddress, options: LoadOptions = {}): Promise<MemoryPlan> {
    return plan(bundle, options);
  }

  get info(): EngineInfo {
    const { manifest, totalBytes, reason } = this.#loaded;
    const { model, quantization, files, tokenizer } = manifest;
    const tokenizerSha256 = files.find(({ file }) => file === tokenizer.file)?.sha256 ?? null;
    const tools = this.#tokenizer.toolFormat !== null;
    return {
      model,
      reason,
      quantization,
      tools,
      tokenizerSha256,
      context: this.#backend.runner.limits.context,
      downloadBytes: totalBytes,
      ...this.#backend.info,
    };
  }

  /** What was computed so far. */
  get counts(): EngineCounts {
    return this.#tokens.counts;
  }

  /**
   * Answer a chat, or a text as its one message. Yields a "token" for each token and one "done"; leave the loop or abort the signal to end it early.
   * Throws RequestError, DeviceError, or the signal's reason.
   */
  async *generate(
    prompt: string | readonly Message[],
    options: GenerateOptions = {},
  ): AsyncGenerator<GenerationEvent, void, undefined> {
    yield* generationEvents(
      this.generateTokens(tokenRequest(this.#promptIds(prompt, options.raw ?? false), options)),
      this.#tokenizer,
    );
  }

  /** Continue token ids with token ids, without any text. Any number of requests may run at once. Throws as `generate` does. */
  generateTokens(request: TokenRequest): AsyncGenerator<GeneratedToken, Completion, undefined> {
    return this.#tokens.generateTokens(request);
  }

  /** Chats with this model's template, tokenizer and stop strings, whose tokens come from elsewhere, as from `WireSpeculation`. */
  over(tokens: TokenSource): ChatCompletions {
    return new ChatCompletions({ ...this.#model, tokens });
  }

  /** The text of tokens, without special ones. */
  decode(ids: readonly number[]): string {
    return this.#tokenizer.decode(ids);
  }

  /** The SHA-256, in hexadecimal, of the model's tokenizer.json: where a server tells the same, its token ids mean the same. */
  async tokenizerSha256(): Promise<string> {
    return sha256(new TextEncoder().encode(this.#loaded.tokenizerJson));
  }

  /** A conversation that keeps its keys and values, can be forked, saved and restored. Close it in the end. */
  createSession(options: SessionOptions = {}): Session {
    const { id: bundle, sessions } = this.#loaded;
    const storage = async (): Promise<SessionStorage> => sessions ?? browserSessions();
    return new Session(
      { tokens: this.#tokens, tokenizer: this.#tokenizer, bundle, activation: () => this.info.activation, storage },
      readParams(options, SESSION_OPTIONS),
    );
  }

  /** The number of tokens of a text, or of a chat's prompt. Throws RequestError. */
  // Async, as it is where the engine runs in a worker.
  // eslint-disable-next-line @typescript-eslint/require-await
  async countTokens(...[prompt, options]: Parameters<EngineApi["countTokens"]>): Promise<number> {
    return (isText(prompt) ? this.#tokenizer.encode(prompt) : encodeChat(this.#tokenizer, prompt, options).ids).length;
  }

  /** The variants that were found fastest on this device, for `nearfar compile --tuning`; null where nothing was measured. Waits for the measurement. */
  async exportTuning(): Promise<TuningEntry | null> {
    return this.#tuner?.record ?? null;
  }

  /**
   * Leave the device alone until `resume`, as while an app is in the background. Answers wait where they are, and new ones before they start.
   * Resolves when the device has nothing more to do.
   */
  async pause(): Promise<void> {
    await this.#gate.close();
  }

  // Async, as it is where the engine runs in a worker.
  // eslint-disable-next-line @typescript-eslint/require-await
  async resume(): Promise<void> {
    this.#gate.open();
  }

  /**
   * Give back the memory of the model and of all keys and values, as when a phone runs short of it; the next answer loads the model again and computes
   * anew what was said. False while an answer is being generated: nothing is done then.
   */
  unload(): boolean {
    if (!this.#tokens.forgetAll()) return false;
    this.#tuner?.stop();
    this.#backend.destroy();
    return true;
  }

  /** Free the device and all its memory. Answers that run fail. */
  destroy(): void {
    const gone = new DeviceError("The engine was destroyed; load the model again");
    this.#closed.abort(gone);
    this.#tuner?.stop();
    this.#tokens.close(gone);
    this.#backend.destroy();
    // What waits for resume has nothing to wait for.
    this.#gate.open();
  }

  /** The device is lost: go on with a new one. */
  async #replaceRunner(): Promise<Backend["runner"]> {
    this.#closed.signal.throwIfAborted();
    this.#tuner?.stop();
    this.#backend.destroy();
    this.#backend = await this.#loaded.reopen(this.#closed.signal);
    this.#tuner = this.#backend.startTuning(this.#embedder ?? this.#tokens);
    return this.#backend.runner;
  }

  #promptIds(prompt: string | readonly Message[], raw: boolean): readonly number[] {
    if (!isText(prompt)) {
      if (raw) throw new RequestError("raw: true takes a text, not a list of messages", { param: "raw" });
      return this.#tokenizer.encodeChat(prompt);
    }
    return raw ? this.#tokenizer.encode(prompt) : this.#tokenizer.encodeChat([{ role: "user", content: prompt }]);
  }
}

/** Whether a prompt is a text and no list of messages. Throws RequestError where it is neither. */
function isText(prompt: string | readonly unknown[]): prompt is string {
  if (typeof prompt === "string") return true;
  if (Array.isArray(prompt)) return false;
  throw new RequestError(`The prompt is ${shown(prompt)}, it must be a text or a list of messages`, {
    param: "prompt",
  });
}

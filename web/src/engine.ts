// The engine: a loaded bundle that answers requests. It combines the token engine, the tokenizer and the API.

import type { AdapterFiles, AdapterOptions } from "./adapters/index.js";
import { ChatCompletions } from "./api/chat_completions.js";
import { encodeChat, prefixOf } from "./api/chat_prompt.js";
import { Completions } from "./api/completions.js";
import type { Embeddings, EngineApi, EngineWithSessions } from "./api/engine_api.js";
import type { Model } from "./api/model.js";
import { readParams, refuseId, shown } from "./api/params.js";
import type { ChatCompletionMessageParam, RequestOptions } from "./api/types.js";
import type { Backend, BackendInfo } from "./backend.js";
import { Gate } from "./engine/gate.js";
import type { AnswerEnd, GeneratedToken, TokenRequest, TokenSource } from "./engine/request.js";
import type { EngineCounts } from "./engine/token_engine.js";
import { TokenEngine } from "./engine/token_engine.js";
import type { TunedEngine, Tuner } from "./engine/tuner.js";
import type { Encoder } from "./encoders/index.js";
import type { DecideOptions, DecideResponse, Questions } from "./decide/index.js";
import { DeviceError, RequestError } from "./errors.js";
import type { ChatMessage, GenerateOptions, GenerationEvent, Prompt } from "./generation.js";
import { generationEvents, tokenRequest } from "./generation.js";
import type { PictureCounts } from "./images/feature_cache.js";
import type { Transcribe } from "./audio/index.js";
import type { PictureParts, Pictures } from "./images/pictures.js";
import { Grammars } from "./grammar/grammars.js";
import type { Loaded } from "./load.js";
import type { BundleAddress, LoadOptions } from "./load_options.js";
import { hasPlan, load, plan } from "./load.js";
import type { PrefixHost } from "./prefixes/prefixes.js";
import type { TuningEntry } from "./runtime/manifest.js";
import type { MemoryPlan } from "./runtime/memory_plan.js";
import { audioFile, importAdapters, importDecide, importPrefixes, importVideos } from "./runtime/import_later.js";
import { sha256 } from "./runtime/read_file.js";
import type { SessionOptions } from "./session.js";
import { SESSION_OPTIONS, Session } from "./session.js";
import type { SessionStorage } from "./store/session_store.js";
import { browserSessions } from "./store/session_store.js";
import type { Message } from "./text/chat_template.js";
import type { Tokenizer } from "./text/tokenizer.js";
import { ToolCallStream } from "./text/tool_call_stream.js";
import type { ToolChoice } from "./text/tools.js";
import { toolGrammar } from "./text/tools.js";

export interface EngineInfo extends BackendInfo {
  readonly model: string;
  /** The bundle's id, the SHA-256 of its manifest, which has the hashes of its files. */
  readonly bundle: string;
  /** Why this bundle was chosen. */
  readonly reason: string;
  readonly quantization: string;
  /** The maximum number of tokens of one sequence. */
  readonly context: number;
  /** The number of tokens of prompts in a step, as the device has chosen it so far. */
  readonly prefillChunk: number;
  /** Whether the model can call tools. */
  readonly tools: boolean;
  /** Whether `enable_thinking` switches the model's reasoning on or off. */
  readonly thinking: boolean;
  /** Whether the model sees pictures. */
  readonly images: boolean;
  /** Whether it reads videos. */
  readonly video: boolean;
  /** Whether it reads recordings in chats: its model hears, or it has a transcriber. */
  readonly sound: boolean;
  /** The SHA-256 of tokenizer.json in hexadecimal. Models with the same value have the same token ids. */
  readonly tokenizerSha256: string | null;
  /** The size of the weights and the tokenizer in bytes: what a load downloads if nothing is stored. */
  readonly downloadBytes: number;
}

export class Engine implements EngineWithSessions {
  /** The interface of OpenAI's client: chat.completions.create. */
  readonly chat: { readonly completions: ChatCompletions };
  readonly completions: Completions;
  readonly embeddings: Embeddings;
  readonly rerank: EngineApi["rerank"];
  readonly score: EngineApi["score"];
  readonly classify: EngineApi["classify"];
  /**
   * The transcript of sound by a model such as Whisper; with ``stream``, its segments as soon as they are known. Throws
   * RequestError if the model transcribes none.
   */
  readonly transcribe: Transcribe;
  /** The cache of keys and values, for `FarPrefill` of prefill.js. */
  readonly cacheHost: Pick<PrefixHost, "tokens" | "manifest" | "info">;
  readonly #loaded: Loaded;
  readonly #tokens: TokenEngine;
  /** Null if the model generates text. */
  readonly #encoder: Encoder | null;
  /** What the tuner waits for. */
  readonly #tuned: TunedEngine;
  readonly #tokenizer: Tokenizer;
  readonly #model: Model;
  /** Null if the model sees none. */
  readonly #pictures: Pictures | null;
  readonly #closed = new AbortController();
  readonly #gate = new Gate();
  #backend: Backend;
  /** Null if there is nothing to tune. */
  #tuner: Tuner | null;

  constructor(loaded: Loaded) {
    const { manifest, backend, tokenizer } = loaded;
    const { runner } = backend;
    this.#loaded = loaded;
    this.#backend = backend;
    this.#tokenizer = tokenizer;
    const { vocab_size: vocabSize, eos_token_ids: endTokenIds } = manifest.spec;
    const opened = loaded.encoders?.open({
      manifest,
      runner,
      tokenizer,
      tokenizerJson: loaded.tokenizerJson,
      replaceRunner: () => this.#replaceRunner(),
      gate: this.#gate,
    });
    this.#encoder = opened?.encoder ?? null;
    const features: PictureParts["features"] = (batch) => this.#tokens.features(batch);
    const senses = { sees: hasPlan(manifest, "vision"), hears: hasPlan(manifest, "hearing") };
    const spec = senses.sees ? manifest.images : null;
    const sounds = senses.hears ? manifest.sounds : null;
    const pictures =
      spec === null && sounds === null
        ? undefined
        : loaded.images?.open({ spec, sounds, model: manifest.spec, features, audio: audioFile, videos: importVideos });
    this.#pictures = pictures ?? null;
    this.#tokens = new TokenEngine(
      runner,
      {
        vocabSize,
        endTokenIds,
        generates: opened === undefined && manifest.speech === null && manifest.ctc === null,
        place: pictures && ((request, maxTokens) => pictures.place(request, maxTokens)),
      },
      () => this.#replaceRunner(),
      this.#gate,
      () => this.#backend.drafting,
    );
    this.#tuned = opened?.engine ?? this.#tokens;
    const host = { ...loaded, ...loaded.prefixes, tokens: this.#tokens, info: () => this.#backend.info } as PrefixHost;
    this.cacheHost = host;
    if (loaded.prefixes) {
      this.#tokens.prefixes = (request) =>
        importPrefixes().then(
          ({ before }) => before(host, request),
          // A script that cannot import it, such as a service worker, computes prefixes.
          () => undefined,
        );
    }
    this.#tuner = backend.startTuning(this.#tuned);
    const format = tokenizer.toolFormat;
    const model: Model = {
      name: manifest.model,
      context: runner.limits.context,
      tokens: this,
      endTokenIds,
      text: tokenizer,
      grammar: new Grammars(loaded.tokenizerJson, { ...manifest.spec, spoken: format?.tokens ?? [] }, loaded.grammar),
      tools:
        format === null
          ? undefined
          : {
              parser: (tools) => new ToolCallStream(format, tools),
              grammar: (tools, choice) => toolGrammar(format, tools, choice as ToolChoice),
            },
      readPictures: pictures && ((...args) => pictures.read(...args)),
      senses,
      transcribe: loaded.transcriber?.transcribe.bind(loaded.transcriber),
      heard: new Map(),
      adapters: () => this.#tokens.adapters?.names ?? [],
    };
    this.#model = model;
    this.chat = { completions: new ChatCompletions(model) };
    this.completions = new Completions(model);
    this.embeddings = { create: this.#encoding("embed") as Embeddings["create"] };
    this.rerank = this.#encoding("rerank");
    this.score = this.#encoding("score");
    this.classify = this.#encoding("classify");
    this.transcribe =
      loaded.audio?.open({
        manifest,
        tokenizer,
        runner: () => this.#backend.runner,
        replaceRunner: () => this.#replaceRunner(),
        gate: this.#gate,
      }) ??
      ((): Promise<never> =>
        Promise.reject(
          new RequestError(
            `This model ${senses.hears ? "hears in chats only; ask there" : "transcribes no sound; load one such as Whisper"}`,
          ),
        ));
  }

  /**
   * Load the bundle in a folder of a web server. Given several bundles, load the first WebGPU bundle that this device
   * can run, or else an ONNX bundle. Throws RequestError for unknown options, BundleError, DeviceError, StorageError,
   * or the signal's reason.
   */
  static async load(bundle: BundleAddress | readonly BundleAddress[], options: LoadOptions = {}): Promise<Engine> {
    return new Engine(await load(bundle, options));
  }

  /**
   * The memory that a bundle needs on this device, computed from its manifest alone. Throws RequestError, BundleError,
   * DeviceError, or the signal's reason.
   */
  static async plan(bundle: BundleAddress, options: LoadOptions = {}): Promise<MemoryPlan> {
    return plan(bundle, options);
  }

  get info(): EngineInfo {
    const { manifest, totalBytes, reason, id: bundle } = this.#loaded;
    const { model, quantization, files, tokenizer } = manifest;
    const tokenizerSha256 = files.find(({ file }) => file === tokenizer.file)?.sha256 ?? null;
    const tools = this.#tokenizer.toolFormat !== null;
    const sees = this.#pictures !== null && this.#model.senses?.sees === true;
    const { limits, chunk = limits.tokens } = this.#backend.runner;
    return {
      model,
      bundle,
      reason,
      quantization,
      tools,
      thinking: this.#tokenizer.thinking.canSwitch,
      images: sees,
      video: sees && manifest.images?.video != null,
      sound: this.#model.senses?.hears === true || this.#model.transcribe !== undefined,
      tokenizerSha256,
      context: limits.context,
      prefillChunk: chunk,
      downloadBytes: totalBytes,
      ...this.#backend.info,
    };
  }

  /** Counts of the work done so far; ``pictures`` is null for a model that sees none. */
  get counts(): EngineCounts & { readonly pictures: PictureCounts | null } {
    return { ...this.#tokens.counts, pictures: this.#pictures?.counts ?? null };
  }

  /**
   * Answer a chat, or a text as the only message of a chat. Yields a "token" event for each token and one "done" event.
   * To end the answer early, leave the loop or abort the signal. Throws RequestError, DeviceError, or the signal's
   * reason.
   */
  async *generate(
    prompt: string | readonly ChatMessage[],
    options: GenerateOptions = {},
  ): AsyncGenerator<GenerationEvent, void, undefined> {
    refuseId(options);
    const request = tokenRequest(await this.#prompt(prompt, options), options);
    yield* generationEvents(this.generateTokens(request), this.#tokenizer);
  }

  /**
   * Continue token ids with token ids, without text. Any number of requests may run at once. Throws the errors of
   * `generate`.
   */
  generateTokens(request: TokenRequest, options: object = {}): AsyncGenerator<GeneratedToken, AnswerEnd, undefined> {
    refuseId(options);
    return this.#tokens.generateTokens(request);
  }

  /**
   * Chat completions with this model's template, tokenizer and stop strings, for tokens from another source such as
   * `WireSpeculation`.
   */
  over(tokens: TokenSource): ChatCompletions {
    return new ChatCompletions({ ...this.#model, tokens });
  }

  /**
   * How likely each answer to typed questions about a context is: a text, or the messages of a chat. Throws RequestError,
   * DeviceError, or the signal's reason.
   */
  async decide(
    context: string | readonly ChatCompletionMessageParam[],
    questions: Questions,
    options: DecideOptions = {},
  ): Promise<DecideResponse> {
    const { decide } = await importDecide();
    return decide(this.#model, encodeChat, context, questions, options, this.#encoder?.head ?? null);
  }

  /** The text of tokens, without special tokens. */
  decode(ids: readonly number[]): string {
    return this.#tokenizer.decode(ids);
  }

  /**
   * The SHA-256 of the model's tokenizer.json in hexadecimal. If a server reports the same value, its token ids have
   * the same meaning.
   */
  async tokenizerSha256(): Promise<string> {
    return sha256(new TextEncoder().encode(this.#loaded.tokenizerJson));
  }

  /** A conversation that retains its keys and values, and can be cloned, saved and restored. Close it at the end. */
  createSession(options: SessionOptions = {}): Session {
    const { id: bundle, sessions } = this.#loaded;
    const storage = async (): Promise<SessionStorage> => sessions ?? browserSessions();
    return new Session(
      {
        tokens: this.#tokens,
        tokenizer: this.#tokenizer,
        bundle,
        activation: () => this.info.activation,
        storage,
        prompt: (...args) => this.#prompt(...args),
        stored: async (messages) => (await this.#pictures?.stored(messages)) ?? messages,
      },
      readParams(options, SESSION_OPTIONS),
    );
  }

  /**
   * Load a LoRA adapter that PEFT wrote, from a folder on a web server or from its files. Requests use it by its name:
   * as ``model`` of the API, or as ``adapter`` of `generate`. Throws RequestError, BundleError, or the signal's reason.
   */
  async loadAdapter(adapter: string | URL | AdapterFiles, options: AdapterOptions): Promise<void> {
    const { loadAdapter } = await importAdapters();
    await loadAdapter(this.#tokens, this.#loaded.manifest, adapter, options);
  }

  /** Resolves when no answer uses the adapter any more; no new one can. Throws RequestError. */
  async unloadAdapter(name: string): Promise<void> {
    const { unloadAdapter } = await importAdapters();
    await unloadAdapter(this.#tokens, name);
  }

  /** The names of the loaded LoRA adapters. */
  // Async, because an engine in a worker can only answer with a promise.
  // oxlint-disable-next-line typescript/require-await
  async listAdapters(): Promise<readonly string[]> {
    return this.#tokens.adapters?.names ?? [];
  }

  /** The number of tokens of a text, or of a chat's prompt. Throws RequestError. */
  async countTokens(...[prompt, options]: Parameters<EngineApi["countTokens"]>): Promise<number> {
    return (isText(prompt) ? this.#tokenizer.encode(prompt) : (await encodeChat(this.#model, prompt, options)).ids)
      .length;
  }

  /**
   * The fastest variants on this device, for `nearfar compile --tuning`; null if nothing was measured. Waits until the
   * measurement has ended.
   */
  async exportTuning(): Promise<TuningEntry | null> {
    return this.#tuner?.record ?? null;
  }

  /**
   * Do not use the device until `resume`, for example while an app is in the background. Running answers are suspended,
   * and new ones wait before they start. Resolves when the device is idle.
   */
  async pause(): Promise<void> {
    await this.#gate.close();
  }

  // Async, because an engine in a worker can only answer with a promise.
  // oxlint-disable-next-line typescript/require-await
  async resume(): Promise<void> {
    this.#gate.open();
  }

  /**
   * Free the memory of the model and of all keys and values, for example when a phone is short of memory. The next
   * answer loads the model again and computes the conversation again. Returns false and does nothing while an answer is
   * being generated.
   */
  unload(): boolean {
    if (!this.#tokens.forgetAll()) return false;
    this.#tuner?.stop();
    this.#backend.destroy();
    return true;
  }

  /** Free the device and all its memory. Running answers fail. */
  destroy(): void {
    const gone = new DeviceError("The engine was destroyed; load the model again");
    this.#closed.abort(gone);
    this.#tuner?.stop();
    this.#tokens.close(gone);
    this.#backend.destroy();
    // Requests that wait for resume must not wait forever.
    this.#gate.open();
  }

  /** Continue with a new device after the old one was lost. */
  async #replaceRunner(): Promise<Backend["runner"]> {
    this.#closed.signal.throwIfAborted();
    this.#tuner?.stop();
    this.#backend.destroy();
    this.#backend = await this.#loaded.reopen(this.#closed.signal);
    this.#tuner = this.#backend.startTuning(this.#tuned);
    return this.#backend.runner;
  }

  /** A method of the encoder. It throws RequestError if the model generates text. */
  #encoding<K extends Exclude<keyof Encoder, "head">>(name: K) {
    return async (
      params: Parameters<Encoder[K]>[0],
      options: RequestOptions = {},
    ): Promise<Awaited<ReturnType<Encoder[K]>>> => {
      if (this.#encoder === null)
        throw new RequestError(
          "This model generates text and makes no embeddings or scores; load the bundle of another model",
        );
      const method = this.#encoder[name] as (
        params: Parameters<Encoder[K]>[0],
        options: RequestOptions,
      ) => Promise<Awaited<ReturnType<Encoder[K]>>>;
      return method(params, options);
    };
  }

  async #prompt(prompt: string | readonly ChatMessage[], options: GenerateOptions): Promise<Prompt> {
    const { raw = false, continueFinalMessage = false, signal } = options;
    if (!isText(prompt)) {
      if (raw) throw new RequestError("raw: true needs a text, not a list of messages", { param: "raw" });
      if (
        continueFinalMessage ||
        prompt.some((message) => Array.isArray((message as Partial<Message> | null)?.content))
      ) {
        // It checks the roles.
        const checked = prompt as readonly ChatCompletionMessageParam[];
        const { ids, images, prefix } = await encodeChat(this.#model, checked, { continueFinalMessage }, signal);
        return { ids, images: await images(signal), prefix };
      }
      const messages = prompt as readonly Message[];
      return { ids: this.#tokenizer.encodeChat(messages), prefix: prefixOf(this.#tokenizer, messages) };
    }
    if (continueFinalMessage)
      throw new RequestError("continueFinalMessage: true needs a list of messages, not a text", {
        param: "continueFinalMessage",
      });
    const ids = raw ? this.#tokenizer.encode(prompt) : this.#tokenizer.encodeChat([{ role: "user", content: prompt }]);
    return { ids };
  }
}

/** Whether a prompt is a text and not a list of messages. Throws RequestError if it is neither. */
function isText(prompt: string | readonly unknown[]): prompt is string {
  if (typeof prompt === "string") return true;
  if (Array.isArray(prompt)) return false;
  throw new RequestError(`The prompt is ${shown(prompt)}, it must be a text or a list of messages`, {
    param: "prompt",
  });
}

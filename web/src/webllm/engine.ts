// WebLLM's engine on ours, so that changing an import is all that a page of WebLLM's has to do. Names and shapes are those of @mlc-ai/web-llm.

import type { EngineApi } from "../api/engine_api.js";
import { foldChat } from "../api/chat_completions.js";
import type {
  ChatCompletion,
  ChatCompletionChoice,
  ChatCompletionChunk,
  ChatCompletionChunkChoice,
  ChatCompletionCreateParams,
  ChatCompletionCreateParamsNonStreaming,
  ChatCompletionCreateParamsStreaming,
  ChatFinishReason,
  Completion,
  CompletionChunk,
  CompletionCreateParams,
  CompletionCreateParamsNonStreaming,
  CompletionCreateParamsStreaming,
  CompletionTimings,
  CompletionUsage,
} from "../api/types.js";
import type { LoadOptions, LoadProgress } from "../load.js";
import { Engine } from "../engine.js";
import { RequestError } from "../errors.js";

/** ``progress`` from 0 to 1, ``timeElapsed`` in seconds. */
export interface InitProgressReport {
  readonly progress: number;
  readonly timeElapsed: number;
  readonly text: string;
}

export type InitProgressCallback = (report: InitProgressReport) => void;

/** ``model`` is the address of a bundle, ``model_id`` the name by which the page calls it. */
export interface ModelRecord {
  readonly model: string;
  readonly model_id: string;
}

export interface MLCEngineConfig {
  readonly appConfig?: { readonly model_list: readonly ModelRecord[] } | undefined;
  readonly initProgressCallback?: InitProgressCallback | undefined;
  /** Accepted, and without effect: nothing is logged. */
  readonly logLevel?: string | undefined;
}

/** What requests use where they do not say. */
export type ChatOptions = Pick<ChatCompletionCreateParams, "temperature" | "top_p" | "frequency_penalty" | "presence_penalty" | "repetition_penalty">;

/** WebLLM's figures, beside OpenAI's. */
export interface UsageExtra {
  readonly e2e_latency_s: number;
  readonly time_to_first_token_s: number;
  readonly prefill_tokens_per_s: number;
  readonly decode_tokens_per_s: number;
}

type WithExtra = CompletionUsage & { readonly extra: UsageExtra };

/** A choice that interruptGenerate may have ended: its reason is "abort" then. */
type Abortable<Choice extends { finish_reason: unknown }> = Omit<Choice, "finish_reason"> & { finish_reason: Choice["finish_reason"] | "abort" };

export type MLCChatCompletion = Omit<ChatCompletion, "choices" | "usage"> & { choices: Abortable<ChatCompletionChoice>[]; usage: WithExtra };

export type MLCChatCompletionChunk = Omit<ChatCompletionChunk, "choices" | "usage"> & {
  choices: Abortable<ChatCompletionChunkChoice>[];
  usage?: WithExtra | null;
};

export type LoadEngine = (bundle: string, options: LoadOptions) => Promise<EngineApi>;

const CONFIG_KEYS: readonly string[] = ["appConfig", "initProgressCallback", "logLevel"] satisfies (keyof MLCEngineConfig)[];
const CHAT_OPTIONS: readonly string[] = ["temperature", "top_p", "frequency_penalty", "presence_penalty", "repetition_penalty"] satisfies (keyof ChatOptions)[];

export class MLCEngine {
  readonly chat = { completions: { create: ((params) => this.chatCompletion(params)) as MLCEngine["chatCompletion"] } };
  readonly completions = { create: ((params) => this.completion(params)) as MLCEngine["completion"] };
  readonly #running = new Set<AbortController>();
  #engine: EngineApi | null = null;
  #loading = new AbortController();
  #chatOptions: ChatOptions = {};
  #message = "";
  #last: { readonly usage: CompletionUsage; readonly timings: CompletionTimings } | null = null;
  #onProgress: InitProgressCallback | undefined;

  /** ``load`` stands in for Engine.load. */
  constructor(
    private readonly config: MLCEngineConfig = {},
    private readonly load: LoadEngine = Engine.load.bind(Engine),
  ) {
    requireKnown("engineConfig", config, CONFIG_KEYS);
    this.#onProgress = config.initProgressCallback;
  }

  /** Loads a model in place of the one before. ``modelId`` is in appConfig.model_list, or the address of a bundle. */
  async reload(modelId: string | readonly string[], chatOptions: ChatOptions = {}): Promise<void> {
    const [id, ...others] = typeof modelId === "string" ? [modelId] : modelId;
    if (id === undefined || others.length > 0) throw new RequestError("An engine holds one model; give one model id", { param: "modelId" });
    requireKnown("chatOpts", chatOptions, CHAT_OPTIONS);
    await this.unload();
    const loading = new AbortController();
    this.#loading = loading;
    const start = performance.now();
    const report = (progress: number, text: string): void => {
      this.#onProgress?.({ progress, timeElapsed: (performance.now() - start) / 1000, text });
    };
    const address = this.config.appConfig?.model_list.find(({ model_id: known }) => known === id)?.model ?? id;
    report(0, `Start to load ${id}`);
    const onProgress = (progress: LoadProgress): void => {
      if (progress.phase !== "ready") report(...described(progress));
    };
    const engine = await this.load(address, { signal: loading.signal, onProgress });
    this.#engine = engine;
    this.#chatOptions = chatOptions;
    report(1, `Finish loading ${id} on ${engine.info.adapter}`);
  }

  async chatCompletion(params: ChatCompletionCreateParamsNonStreaming): Promise<MLCChatCompletion>;
  async chatCompletion(params: ChatCompletionCreateParamsStreaming): Promise<AsyncGenerator<MLCChatCompletionChunk, void, undefined>>;
  async chatCompletion(params: ChatCompletionCreateParams): Promise<MLCChatCompletion | AsyncGenerator<MLCChatCompletionChunk, void, undefined>>;
  async chatCompletion(params: ChatCompletionCreateParams): Promise<MLCChatCompletion | AsyncGenerator<MLCChatCompletionChunk, void, undefined>> {
    const controller = new AbortController();
    const streamOptions = { include_usage: params.stream !== true || params.stream_options?.include_usage === true };
    const asked = { ...this.#chatOptions, ...params, stream: true, stream_options: streamOptions } as const;
    const stream = await this.loaded().chat.completions.create(asked, { interrupt: controller.signal });
    const chunks = this.watched(stream, controller, ({ choices: [choice] }) => choice?.delta.content ?? "");
    const abortable = <T extends { finish_reason: ChatFinishReason | null }>(choice: T) =>
      controller.signal.aborted && choice.finish_reason === "stop" ? { ...choice, finish_reason: "abort" as const } : choice;
    if (params.stream === true) {
      return (async function* (): AsyncGenerator<MLCChatCompletionChunk, void, undefined> {
        let timings: CompletionTimings | undefined;
        for await (const { usage, ...chunk } of chunks) {
          timings ??= chunk.timings;
          const extra = usage === undefined ? {} : { usage: usage === null || timings === undefined ? null : withExtra(usage, timings) };
          yield { ...chunk, choices: chunk.choices.map(abortable), ...extra };
        }
      })();
    }
    const { usage, ...whole } = await foldChat(chunks);
    return { ...whole, choices: whole.choices.map(abortable), usage: withExtra(usage, whole.timings) };
  }

  async completion(params: CompletionCreateParamsNonStreaming): Promise<Completion>;
  async completion(params: CompletionCreateParamsStreaming): Promise<AsyncGenerator<CompletionChunk, void, undefined>>;
  async completion(params: CompletionCreateParams): Promise<Completion | AsyncGenerator<CompletionChunk, void, undefined>>;
  async completion(params: CompletionCreateParams): Promise<Completion | AsyncGenerator<CompletionChunk, void, undefined>> {
    const controller = new AbortController();
    const answer = await this.loaded().completions.create({ ...this.#chatOptions, ...params }, { interrupt: controller.signal });
    if (Symbol.asyncIterator in answer) return this.watched(answer, controller, ({ choices: [choice] }) => choice?.text ?? "");
    this.#message = answer.choices[0]?.text ?? "";
    this.#last = answer;
    return answer;
  }

  /** Ends what is being generated. Its text so far is the answer, with finish_reason "abort". */
  interruptGenerate(): void {
    for (const controller of this.#running) controller.abort();
  }

  /** The text of the last answer. */
  getMessage(): Promise<string> {
    return Promise.resolve(this.#message);
  }

  runtimeStatsText(): Promise<string> {
    if (this.#last === null) return Promise.resolve("prefill: not yet, decoding: not yet");
    const { prefill_tokens_per_s: prefill, decode_tokens_per_s: decode } = withExtra(this.#last.usage, this.#last.timings).extra;
    return Promise.resolve(`prefill: ${prefill.toFixed(4)} tokens/sec, decoding: ${decode.toFixed(4)} tokens/sec`);
  }

  /** Forgets the last answer; with ``keepStats`` its figures stay. A chat's history is in its messages alone. */
  resetChat(keepStats = false): Promise<void> {
    this.#message = "";
    if (!keepStats) this.#last = null;
    return Promise.resolve();
  }

  /** Ends what runs and frees the model. */
  unload(): Promise<void> {
    this.#loading.abort();
    this.interruptGenerate();
    this.#engine?.destroy();
    this.#engine = null;
    return this.resetChat();
  }

  setInitProgressCallback(callback: InitProgressCallback): void {
    this.#onProgress = callback;
  }

  getInitProgressCallback(): InitProgressCallback | undefined {
    return this.#onProgress;
  }

  private loaded(): EngineApi {
    if (this.#engine === null) throw new RequestError("No model is loaded; call reload(modelId) first");
    return this.#engine;
  }

  /** The chunks, whose text and figures are noted, and which interruptGenerate can end. */
  private async *watched<T extends { readonly usage?: CompletionUsage | null; readonly timings?: CompletionTimings }>(
    chunks: AsyncIterable<T>,
    controller: AbortController,
    textOf: (chunk: T) => string,
  ): AsyncGenerator<T, void, undefined> {
    this.#running.add(controller);
    let message = "";
    let timings: CompletionTimings | undefined;
    try {
      for await (const chunk of chunks) {
        message += textOf(chunk);
        this.#message = message;
        timings ??= chunk.timings;
        if (chunk.usage && timings !== undefined) this.#last = { usage: chunk.usage, timings };
        yield chunk;
      }
    } finally {
      this.#running.delete(controller);
    }
  }
}

function described({ loadedBytes, totalBytes, compiledKernels, totalKernels }: LoadProgress): [progress: number, text: string] {
  const megabytes = (bytes: number): string => (bytes / 1e6).toFixed(1);
  const text = `Loading weights: ${megabytes(loadedBytes)} of ${megabytes(totalBytes)} MB; compiling kernels: ${compiledKernels} of ${totalKernels}`;
  return [totalBytes === 0 ? 0 : loadedBytes / totalBytes, text];
}

function withExtra(usage: CompletionUsage, timings: CompletionTimings): WithExtra {
  const firstTokenSeconds = timings.time_to_first_token_ms / 1000;
  return {
    ...usage,
    extra: {
      e2e_latency_s: timings.total_ms / 1000,
      time_to_first_token_s: firstTokenSeconds,
      prefill_tokens_per_s: firstTokenSeconds > 0 ? usage.prompt_tokens / firstTokenSeconds : 0,
      decode_tokens_per_s: timings.tokens_per_second ?? 0,
    },
  };
}

function requireKnown(what: string, options: object, known: readonly string[]): void {
  const unknown = Object.keys(options).find((key) => !known.includes(key));
  if (unknown !== undefined) throw new RequestError(`${what}.${unknown} is not supported; supported: ${known.join(", ")}`, { param: unknown });
}

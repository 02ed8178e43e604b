// One loaded model of an engine: its requests, its last answer and its statistics.

import { foldChat } from "../api/chat_completions.js";
import type { EngineApi } from "../api/engine_api.js";
import { foldCompletion } from "../api/completions.js";
import type {
  ChatCompletionChunk as OurChatChunk,
  CompletionChunk,
  CompletionTimings,
  CompletionUsage,
} from "../api/types.js";
import type { TokenSource } from "../engine/request.js";
import { RequestError } from "../errors.js";
import { chatChunk, chatCompletion, completion, withExtra } from "./answers.js";
import type { AnswerContext } from "./answers.js";
import type {
  ChatCompletion,
  ChatCompletionChunk,
  ChatCompletionMessageParam,
  ChatCompletionRequestBase,
} from "./chat_types.js";
import type {
  Completion,
  CompletionCreateParamsBase,
  CreateEmbeddingResponse,
  EmbeddingCreateParams,
} from "./completion_types.js";
import type { SamplingDefaults } from "./config.js";
import { ModelProcessor } from "./model_processor.js";
import type { LogitProcessor } from "./interface.js";
import { chatParams, completionParams, withEcho } from "./request.js";

/** The methods that WebLLM's interface needs from a loaded engine. Engine implements them. */
export type BaseEngine = EngineApi & TokenSource;

/** In tokens per second. */
interface Speeds {
  readonly prefill: number | null;
  readonly decode: number | null;
}

const NO_SPEEDS: Speeds = { prefill: null, decode: null };

interface Chunk {
  readonly choices: readonly { readonly index: number; readonly finish_reason: string | null }[];
  readonly usage?: CompletionUsage | null;
  readonly timings?: CompletionTimings;
}

export class LoadedModel {
  readonly #running = new Set<AbortController>();
  readonly #processor: ModelProcessor | null;
  #message = "";
  #speeds = NO_SPEEDS;
  /** The token ids that forwardTokensAndSample continues. */
  #forwarded: number[] = [];

  constructor(
    readonly id: string,
    readonly engine: BaseEngine,
    private readonly defaults: SamplingDefaults,
    processor: LogitProcessor | undefined,
  ) {
    this.#processor = processor === undefined ? null : new ModelProcessor(processor);
  }

  get message(): string {
    return this.#message;
  }

  get statsText(): string {
    const text = (speed: number | null): string => (speed === null ? "not yet" : `${speed.toFixed(4)} tokens/sec`);
    return `prefill: ${text(this.#speeds.prefill)}, decoding: ${text(this.#speeds.decode)}`;
  }

  async chatCompletion(
    request: ChatCompletionRequestBase,
  ): Promise<ChatCompletion | AsyncGenerator<ChatCompletionChunk, void, undefined>> {
    const params = chatParams(request, this.defaults);
    const { controller, context, options } = this.#request(request.n);
    const stream = await this.engine.chat.completions.create(params, options);
    const last = (request.n ?? 1) - 1;
    const textOf = ({ choices }: OurChatChunk): string =>
      choices.map(({ index, delta }) => (index === last ? (delta.content ?? "") : "")).join("");
    const chunks = this.#observed(stream, controller, textOf, request.messages);
    return request.stream === true
      ? streamed(chunks, request, context, chatChunk)
      : chatCompletion(await foldChat(chunks), context);
  }

  async completion(
    request: CompletionCreateParamsBase,
  ): Promise<Completion | AsyncGenerator<Completion, void, undefined>> {
    const params = completionParams(request, this.defaults);
    const { controller, context, options } = this.#request(request.n);
    const stream = await this.engine.completions.create(params, options);
    const last = (request.n ?? 1) - 1;
    const textOf = ({ choices }: CompletionChunk): string =>
      choices.map(({ index, text }) => (index === last ? text : "")).join("");
    const chunks = this.#observed(withEcho(stream, request), controller, textOf);
    if (request.stream === true) return streamed(chunks, request, context, completion);
    const answer = await foldCompletion(chunks);
    return completion(answer, answer.timings, context);
  }

  async embedding(request: EmbeddingCreateParams): Promise<CreateEmbeddingResponse> {
    const start = performance.now();
    const { usage, ...answer } = await this.engine.embeddings.create(request);
    const seconds = (performance.now() - start) / 1000;
    return {
      ...answer,
      model: this.id,
      usage: { ...usage, extra: { prefill_tokens_per_s: seconds > 0 ? usage.prompt_tokens / seconds : 0 } },
    };
  }

  /** Samples with the model's defaults, without penalties. Throws RequestError, DeviceError. */
  async forwardTokensAndSample(inputIds: readonly number[], isPrefill: boolean): Promise<number> {
    const end = await this.#processor?.turn();
    try {
      const promptIds = [...this.#forwarded, ...inputIds];
      const sampled: number[] = [];
      const logitProcessor = (logitsOrToken: Float32Array | number): void => {
        // This includes an end token, which is not in the answer.
        if (typeof logitsOrToken === "number") sampled.push(logitsOrToken);
        this.#processor?.forEngine(logitsOrToken);
      };
      const { temperature = 1, top_p: topP } = this.defaults;
      const start = performance.now();
      for await (const { tokenId } of this.engine.generateTokens({
        promptIds,
        maxTokens: 1,
        sampling: { temperature, topP },
        logitProcessor,
      }))
        sampled[0] = tokenId;
      const seconds = (performance.now() - start) / 1000;
      const speed = seconds > 0 ? inputIds.length / seconds : 0;
      this.#speeds = isPrefill ? { ...this.#speeds, prefill: speed } : { ...this.#speeds, decode: speed };
      const [token] = sampled;
      if (token === undefined)
        throw new RequestError("The context is full; call resetChat first", { param: "inputIds" });
      this.#forwarded = promptIds;
      return token;
    } finally {
      end?.();
    }
  }

  interrupt(): void {
    for (const controller of this.#running) controller.abort();
  }

  reset(keepStats: boolean): void {
    this.#message = "";
    this.#forwarded = [];
    if (!keepStats) this.#speeds = NO_SPEEDS;
    this.#processor?.reset();
  }

  destroy(): void {
    this.interrupt();
    this.engine.destroy();
  }

  #request(n: number | null | undefined): {
    readonly controller: AbortController;
    readonly context: AnswerContext;
    readonly options: { readonly interrupt: AbortSignal; readonly logitProcessor?: ModelProcessor["forEngine"] };
  } {
    if (this.#processor !== null && (n ?? 1) > 1)
      throw new RequestError("A logit processor has the state of one answer; make requests with n: 1", { param: "n" });
    const controller = new AbortController();
    const context = { modelId: this.id, interrupted: () => controller.signal.aborted };
    const logitProcessor = this.#processor === null ? {} : { logitProcessor: this.#processor.forEngine };
    return { controller, context, options: { interrupt: controller.signal, ...logitProcessor } };
  }

  /**
   * Passes on the chunks and records their text and statistics. interruptGenerate can end them. With a logit processor,
   * requests take turns.
   */
  async *#observed<T extends Chunk>(
    chunks: AsyncIterable<T>,
    controller: AbortController,
    textOf: (chunk: T) => string,
    messages?: readonly ChatCompletionMessageParam[],
  ): AsyncGenerator<T, void, undefined> {
    this.#running.add(controller);
    const end = await this.#processor?.turn();
    let message = "";
    let timings: CompletionTimings | undefined;
    let isComplete = false;
    try {
      this.#processor?.start(messages);
      this.#forwarded = [];
      for await (const chunk of chunks) {
        message += textOf(chunk);
        this.#message = message;
        timings ??= chunk.timings;
        isComplete ||= chunk.choices.some(({ finish_reason: reason }) => reason === "stop");
        if (chunk.usage && timings !== undefined) {
          const { prefill_tokens_per_s: prefill, decode_tokens_per_s: decode } = withExtra(chunk.usage, timings).extra;
          this.#speeds = { prefill, decode };
        }
        yield chunk;
      }
      if (isComplete && messages !== undefined && !controller.signal.aborted)
        this.#processor?.finish(messages, message);
    } finally {
      this.#running.delete(controller);
      end?.();
    }
  }
}

/** The chunks in WebLLM's form. The last one, with the usage, is left out unless ``include_usage`` is set. */
async function* streamed<T extends Chunk, U>(
  chunks: AsyncIterable<T>,
  { stream_options: options }: ChatCompletionRequestBase | CompletionCreateParamsBase,
  context: AnswerContext,
  convert: (chunk: T, timings: CompletionTimings | undefined, context: AnswerContext) => U,
): AsyncGenerator<U, void, undefined> {
  let timings: CompletionTimings | undefined;
  for await (const chunk of chunks) {
    timings ??= chunk.timings;
    if (chunk.choices.length > 0 || options?.include_usage === true) yield convert(chunk, timings, context);
  }
}

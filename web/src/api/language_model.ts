// Chrome's Prompt API on an engine of ours: createLanguageModel gives what window.LanguageModel is. Prompts flow in, answers flow out, and the
// session keeps the conversation. Names, errors and events are those of https://webmachinelearning.github.io/prompt-api.

import type { LoadProgress } from "../load.js";
import { NearfarError, messageOf } from "../errors.js";
import type { EngineApi } from "./engine_api.js";
import type { LanguageModelPrompt, TextMessage } from "./language_model_prompt.js";
import { canonicalPrompt } from "./language_model_prompt.js";
import { anySignal } from "./stream.js";
import type { ChatCompletionMessageParam, ResponseFormat } from "./types.js";

export type Availability = "unavailable" | "downloadable" | "downloading" | "available";

// How free each mode is: the specification leaves the figures to the implementation.
const MODE_TEMPERATURES = {
  "most-predictable": 0,
  predictable: 0.3,
  "slightly-predictable": 0.5,
  balanced: 0.7,
  "slightly-creative": 0.85,
  creative: 1,
  "most-creative": 1.3,
} as const;

export type SamplingMode = keyof typeof MODE_TEMPERATURES;

export interface LanguageModelExpected {
  readonly type: string;
  readonly languages?: readonly string[] | undefined;
}

export interface LanguageModelCreateCoreOptions {
  readonly topK?: number | undefined;
  readonly temperature?: number | undefined;
  readonly samplingMode?: SamplingMode | undefined;
  readonly expectedInputs?: readonly LanguageModelExpected[] | undefined;
  readonly expectedOutputs?: readonly LanguageModelExpected[] | undefined;
  readonly tools?: readonly unknown[] | undefined;
}

export interface LanguageModelCreateOptions extends LanguageModelCreateCoreOptions {
  readonly initialPrompts?: LanguageModelPrompt | undefined;
  readonly signal?: AbortSignal | undefined;
  readonly monitor?: ((monitor: CreateMonitor) => void) | undefined;
}

/** Its "downloadprogress" events have ``loaded`` from 0 to 1. */
export interface CreateMonitor extends EventTarget {
  addEventListener(type: "downloadprogress", listener: (event: ProgressEvent) => void, options?: AddEventListenerOptions | boolean): void;
  addEventListener(...args: Parameters<EventTarget["addEventListener"]>): void;
}

export interface LanguageModelPromptOptions {
  /** A JSON schema, or a RegExp. */
  readonly responseConstraint?: object | undefined;
  readonly omitResponseConstraintInput?: boolean | undefined;
  readonly signal?: AbortSignal | undefined;
}

export interface SignalOption {
  readonly signal?: AbortSignal | undefined;
}

/** What window.LanguageModel has. */
export interface LanguageModelFactory {
  availability(options?: LanguageModelCreateCoreOptions): Promise<Availability>;
  create(options?: LanguageModelCreateOptions): Promise<LanguageModel>;
}

export type EngineLoader = (options: { readonly onProgress: (progress: LoadProgress) => void }) => Promise<EngineApi>;

/** ``engine``: one that is loaded, or a function that loads it, which the first create() calls. */
export function createLanguageModel(engine: EngineApi | EngineLoader): LanguageModelFactory {
  let loading: Promise<EngineApi> | null = typeof engine === "function" ? null : Promise.resolve(engine);
  let loaded = typeof engine !== "function";
  const monitors = new Set<(loaded: number) => void>();
  const load = (): Promise<EngineApi> =>
    (loading ??= (engine as EngineLoader)({
      onProgress: ({ loadedBytes, totalBytes }) => {
        for (const monitor of monitors) monitor(totalBytes === 0 ? 0 : loadedBytes / totalBytes);
      },
    }).then(
      (ready) => {
        loaded = true;
        return ready;
      },
      (error: unknown) => {
        // The next create tries again.
        loading = null;
        throw domError(error);
      },
    ));
  return {
    availability: (options = {}) => {
      const isText = [...(options.expectedInputs ?? []), ...(options.expectedOutputs ?? [])].every(({ type }) => type === "text");
      if (!isText || (options.tools ?? []).length > 0) return Promise.resolve("unavailable");
      return Promise.resolve(loaded ? "available" : loading === null ? "downloadable" : "downloading");
    },
    async create(options = {}) {
      const { signal, monitor, initialPrompts } = options;
      signal?.throwIfAborted();
      const sampling = readSampling(options);
      if ((await this.availability(options)) === "unavailable") throw new DOMException("This model reads and writes text, without tools", "NotSupportedError");
      const first = initialPrompts === undefined ? [] : canonicalPrompt(initialPrompts, true);
      const report = progressMonitor(monitor);
      report(0);
      monitors.add(report);
      try {
        const ready = await unlessAborted(load(), signal);
        report(1);
        const session = new LanguageModel(ready, sampling);
        if (first.length > 0) await session.append(first, { signal });
        return session;
      } finally {
        monitors.delete(report);
      }
    },
  };
}

interface Sampling {
  readonly temperature: number;
  readonly topK: number | undefined;
  readonly samplingMode: SamplingMode | null;
}

/** A conversation. Its calls run one after the other, in the order in which they were made. */
export class LanguageModel extends EventTarget {
  /** Called when the oldest messages were dropped to make room, as listeners to "contextoverflow" are. */
  oncontextoverflow: ((event: Event) => void) | null = null;
  readonly contextWindow: number;
  readonly topK: number | undefined;
  readonly temperature: number;
  readonly samplingMode: SamplingMode | null;
  #messages: readonly TextMessage[] = [];
  #contextUsage = 0;
  #last: Promise<unknown> = Promise.resolve();
  readonly #destroyed = new AbortController();

  /** Use createLanguageModel(engine).create(). */
  constructor(
    private readonly engine: EngineApi,
    private readonly sampling: Sampling,
  ) {
    super();
    this.contextWindow = engine.info.context;
    ({ topK: this.topK, temperature: this.temperature, samplingMode: this.samplingMode } = sampling);
  }

  /** Tokens of the conversation so far. */
  get contextUsage(): number {
    return this.#contextUsage;
  }

  /** The whole answer. Where it fails or is aborted, the session stays as it was. */
  async prompt(input: LanguageModelPrompt, options: LanguageModelPromptOptions = {}): Promise<string> {
    return this.answer(input, options, () => undefined);
  }

  /** The answer's text as it comes. Cancelling the stream aborts the prompt. */
  promptStreaming(input: LanguageModelPrompt, options: LanguageModelPromptOptions = {}): ReadableStream<string> {
    const cancelled = new AbortController();
    const signal = anySignal(options.signal, cancelled.signal);
    return new ReadableStream<string>({
      start: (controller) => {
        const enqueue = (text: string): void => {
          if (!cancelled.signal.aborted) controller.enqueue(text);
        };
        this.answer(input, { ...options, signal }, enqueue).then(
          () => {
            if (!cancelled.signal.aborted) controller.close();
          },
          (error: unknown) => {
            controller.error(error);
          },
        );
      },
      cancel: (reason) => {
        cancelled.abort(reason);
      },
    });
  }

  /** Put messages into the conversation without an answer. */
  async append(input: LanguageModelPrompt, { signal }: SignalOption = {}): Promise<void> {
    return this.inTurn(signal, async () => {
      const added = canonicalPrompt(input, this.#messages.length === 0).map((message) => ({ ...message, prefix: false }));
      const { kept, usage } = await this.makeRoom(added, this.contextWindow);
      this.#messages = [...kept, ...added];
      this.#contextUsage = usage;
    });
  }

  /** Tokens that prompt() would add for this input. */
  async measureContextUsage(input: LanguageModelPrompt, options: LanguageModelPromptOptions = {}): Promise<number> {
    const { signal } = options;
    const asked = withConstraint(canonicalPrompt(input, this.#messages.length === 0), options);
    anySignal(signal, this.#destroyed.signal).throwIfAborted();
    return Math.max(0, (await this.count([...this.#messages, ...asked])) - this.#contextUsage);
  }

  /** A session that starts from this one's conversation. */
  async clone({ signal }: SignalOption = {}): Promise<LanguageModel> {
    anySignal(signal, this.#destroyed.signal).throwIfAborted();
    const copy = new LanguageModel(this.engine, this.sampling);
    copy.#messages = this.#messages;
    copy.#contextUsage = this.#contextUsage;
    return Promise.resolve(copy);
  }

  /** Ends what runs, and every later call, with an AbortError. */
  destroy(): void {
    this.#destroyed.abort(new DOMException("The session was destroyed", "AbortError"));
  }

  private answer(input: LanguageModelPrompt, options: LanguageModelPromptOptions, onText: (text: string) => void): Promise<string> {
    return this.inTurn(options.signal, async (signal) => {
      const added = canonicalPrompt(input, this.#messages.length === 0);
      const asked = withConstraint(added, options);
      // The answer needs a token at least.
      const { kept } = await this.makeRoom(asked, this.contextWindow - 1);
      const chunks = await this.engine.chat.completions.create(
        {
          messages: [...kept, ...asked].map(chatMessage),
          temperature: this.temperature,
          top_k: this.topK,
          continue_final_message: isPrefixed(asked),
          response_format: responseFormat(options.responseConstraint),
          stream: true,
        },
        { signal },
      );
      let text = "";
      for await (const { choices } of chunks) {
        const piece = choices[0]?.delta.content ?? "";
        if (piece !== "") onText(piece);
        text += piece;
      }
      const before = isPrefixed(added) ? added.slice(0, -1) : added;
      const start = isPrefixed(added) ? (added.at(-1)?.content ?? "") : "";
      const messages: readonly TextMessage[] = [...kept, ...before, { role: "assistant", content: start + text, prefix: false }];
      this.#contextUsage = await this.count(messages);
      this.#messages = messages;
      return text;
    });
  }

  /** Drops the oldest turns, never the system message, until ``added`` fits as well. Throws QuotaExceededError where it never does. */
  private async makeRoom(added: readonly TextMessage[], most: number): Promise<{ readonly kept: readonly TextMessage[]; readonly usage: number }> {
    let kept = this.#messages;
    for (;;) {
      const usage = await this.count([...kept, ...added]);
      if (usage <= most) {
        if (kept.length < this.#messages.length) this.overflow();
        return { kept, usage };
      }
      const oldest = kept.findIndex(({ role }) => role !== "system");
      if (oldest < 0) throw quotaExceeded(usage, this.contextWindow);
      const next = kept.findIndex(({ role }, index) => index > oldest && role === "user");
      kept = [...kept.slice(0, oldest), ...(next < 0 ? [] : kept.slice(next))];
    }
  }

  private overflow(): void {
    const event = new Event("contextoverflow");
    this.dispatchEvent(event);
    this.oncontextoverflow?.(event);
  }

  private async count(messages: readonly TextMessage[]): Promise<number> {
    if (messages.length === 0) return 0;
    return this.engine.countTokens(messages.map(chatMessage), { continueFinalMessage: isPrefixed(messages) }).catch((error: unknown) => {
      throw domError(error);
    });
  }

  private inTurn<T>(given: AbortSignal | undefined, run: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const signal = anySignal(given, this.#destroyed.signal);
    const turn = this.#last.then(async () => {
      signal.throwIfAborted();
      return run(signal);
    });
    this.#last = turn.catch(() => undefined);
    return unlessAborted(
      turn.catch((error: unknown) => {
        throw signal.aborted ? error : domError(error);
      }),
      signal,
    );
  }
}

const chatMessage = ({ role, content }: TextMessage): ChatCompletionMessageParam => ({ role, content });

const isPrefixed = (messages: readonly TextMessage[]): boolean => messages.at(-1)?.prefix === true;

function readSampling({ topK, temperature, samplingMode }: LanguageModelCreateCoreOptions): Sampling {
  if (topK === undefined && temperature === undefined) {
    const mode = samplingMode ?? "balanced";
    if (!Object.hasOwn(MODE_TEMPERATURES, mode)) throw new TypeError(`samplingMode is '${mode}', it must be one of ${Object.keys(MODE_TEMPERATURES).join(", ")}`);
    return { temperature: MODE_TEMPERATURES[mode], topK: undefined, samplingMode: mode };
  }
  if (samplingMode !== undefined) throw new TypeError("samplingMode cannot be given together with topK or temperature");
  if (topK !== undefined && !(topK >= 1)) throw new RangeError(`topK is ${topK}, it must be at least 1`);
  if (temperature !== undefined && !(temperature >= 0)) throw new RangeError(`temperature is ${temperature}, it must be at least 0`);
  return {
    temperature: Math.min(temperature ?? MODE_TEMPERATURES.balanced, 2),
    topK: topK === undefined || topK > Number.MAX_SAFE_INTEGER ? undefined : Math.floor(topK),
    samplingMode: null,
  };
}

function responseFormat(constraint: object | undefined): ResponseFormat {
  if (constraint === undefined) return { type: "text" };
  if (constraint instanceof RegExp && /[imsv]/.test(constraint.flags)) {
    throw new DOMException(`responseConstraint has the flags '${constraint.flags}', which are not supported`, "NotSupportedError");
  }
  if (constraint instanceof RegExp) return { type: "regex", pattern: constraint.source };
  return { type: "json_schema", json_schema: { name: "response", schema: constraint as Readonly<Record<string, unknown>> } };
}

/** The messages with the constraint in words, at the end of the last that is not the answer's start, unless that is not wanted. */
function withConstraint(
  messages: readonly TextMessage[],
  { responseConstraint, omitResponseConstraintInput = false }: LanguageModelPromptOptions,
): readonly TextMessage[] {
  if (responseConstraint === undefined) {
    if (omitResponseConstraintInput) throw new TypeError("omitResponseConstraintInput needs a responseConstraint");
    return messages;
  }
  if (typeof (responseConstraint as unknown) !== "object") throw new TypeError("responseConstraint must be a JSON schema or a RegExp");
  if (omitResponseConstraintInput) return messages;
  const isPattern = responseConstraint instanceof RegExp;
  const hint = isPattern ? `Answer with a text that matches ${String(responseConstraint)}` : `Answer with JSON of this schema: ${JSON.stringify(responseConstraint)}`;
  const last = messages.findLastIndex(({ role }) => role === "user");
  return messages.map((message, index) => (index === last ? { ...message, content: `${message.content}\n\n${hint}` } : message));
}

function progressMonitor(monitor: LanguageModelCreateOptions["monitor"]): (loaded: number) => void {
  const target = new EventTarget();
  let last = -1;
  // Node has no ProgressEvent, so its fields are put on an Event.
  monitor?.(target as CreateMonitor);
  return (loaded) => {
    if (loaded <= last) return;
    last = loaded;
    target.dispatchEvent(Object.assign(new Event("downloadprogress"), { loaded, total: 1, lengthComputable: true }));
  };
}

/** The promise, or the signal's reason as soon as it aborts. */
async function unlessAborted<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (signal === undefined) return promise;
  const settled = new AbortController();
  const aborted = new Promise<never>((_, reject) => {
    const stop = (): void => {
      reject(signal.reason as Error);
    };
    if (signal.aborted) stop();
    else signal.addEventListener("abort", stop, { signal: settled.signal });
  });
  try {
    return await Promise.race([promise, aborted]);
  } finally {
    settled.abort();
    promise.catch(() => undefined);
  }
}

/** An engine's error as the exception that the specification names; what is one of those already stays as it is. */
function domError(error: unknown): unknown {
  if (error instanceof DOMException || error instanceof TypeError || error instanceof RangeError) return error;
  const name = error instanceof NearfarError && error.param === "response_format" ? "NotSupportedError" : "UnknownError";
  return new DOMException(messageOf(error), name);
}

/** Browsers are about to make this a class of its own. */
function quotaExceeded(requested: number, quota: number): Error {
  const message = `The prompt needs ${requested} tokens, and the context holds ${quota}`;
  type Constructor = new (message: string, options: { readonly requested: number; readonly quota: number }) => Error;
  const native = (globalThis as { readonly QuotaExceededError?: Constructor }).QuotaExceededError;
  return native === undefined ? Object.assign(new DOMException(message, "QuotaExceededError"), { requested, quota }) : new native(message, { requested, quota });
}

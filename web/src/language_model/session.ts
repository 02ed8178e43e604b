// A session of the Prompt API: a conversation with an engine. The names, errors and events are those of
// https://webmachinelearning.github.io/prompt-api.

import type { EngineApi } from "../api/engine_api.js";
import { anySignal } from "../api/stream.js";
import type { ChatCompletionMessageParam, FunctionTool, ResponseFormat } from "../api/types.js";
import type { EngineInfo } from "../engine.js";
import { unlessAborted } from "../runtime/abort.js";
import { domError, quotaExceeded } from "./dom_errors.js";
import type { ExpectedMedia, LanguageModelPrompt, TextMessage } from "./prompt.js";
import { canonicalPrompt } from "./prompt.js";
import type { Sampling, SamplingMode } from "./sampling.js";
import type { LanguageModelTool, ToolCall } from "./tools.js";
import { functionTools, runTool } from "./tools.js";

/** The most rounds of tool calls before an answer. */
const MAX_TOOL_ROUNDS = 16;

export interface LanguageModelPromptOptions {
  /** A JSON schema, or a RegExp. */
  readonly responseConstraint?: object | undefined;
  readonly omitResponseConstraintInput?: boolean | undefined;
  /** Extension: as in `create`, for this prompt only. */
  readonly thinking?: boolean | undefined;
  readonly signal?: AbortSignal | undefined;
}

export interface SignalOption {
  readonly signal?: AbortSignal | undefined;
}

/** A conversation. Its calls run one after the other, in the order of their start. */
export class LanguageModel extends EventTarget {
  /** Called, as listeners to "contextoverflow" are, when the oldest messages were dropped to make room. */
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
    private readonly tools: readonly LanguageModelTool[] = [],
    private readonly thinking?: boolean,
    private readonly expected: ExpectedMedia = { image: false, audio: false },
    signal?: AbortSignal,
  ) {
    super();
    const destroy = (): void => {
      this.destroy(signal?.reason);
    };
    // The signal may outlive the session, and must not keep it.
    signal?.addEventListener("abort", destroy, { signal: this.#destroyed.signal });
    this.contextWindow = engine.info.context;
    ({ topK: this.topK, temperature: this.temperature, samplingMode: this.samplingMode } = sampling);
  }

  /** The number of tokens of the conversation so far. */
  get contextUsage(): number {
    return this.#contextUsage;
  }

  /** The complete answer, after all tool calls. If it fails or is aborted, the session does not change. */
  async prompt(input: LanguageModelPrompt, options: LanguageModelPromptOptions = {}): Promise<string> {
    return this.answer(input, options, () => undefined);
  }

  /** Streams the answer's text. Cancelling the stream aborts the prompt. */
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

  /** Appends messages to the conversation without an answer. */
  async append(input: LanguageModelPrompt, { signal }: SignalOption = {}): Promise<void> {
    return this.inTurn(signal, async () => {
      const added = this.canonical(input).map((message) => ({
        ...message,
        prefix: false,
      }));
      const { retained, usage } = await this.makeRoom(added, this.contextWindow);
      this.#messages = [...retained, ...added];
      this.#contextUsage = usage;
    });
  }

  /** The number of tokens that prompt() would add for this input. */
  async measureContextUsage(input: LanguageModelPrompt, options: LanguageModelPromptOptions = {}): Promise<number> {
    const { signal, thinking } = options;
    checkThinking(thinking, this.engine.info);
    const prompt = withConstraint(this.canonical(input), options);
    anySignal(signal, this.#destroyed.signal).throwIfAborted();
    return Math.max(0, (await this.count([...this.#messages, ...prompt], thinking)) - this.#contextUsage);
  }

  /** A new session that continues this session's conversation. */
  async clone({ signal }: SignalOption = {}): Promise<LanguageModel> {
    anySignal(signal, this.#destroyed.signal).throwIfAborted();
    const copy = new LanguageModel(this.engine, this.sampling, this.tools, this.thinking, this.expected);
    copy.#messages = this.#messages;
    copy.#contextUsage = this.#contextUsage;
    return Promise.resolve(copy);
  }

  /** Ends the running call, and every later call, with an AbortError or this reason. */
  destroy(reason: unknown = new DOMException("The session was destroyed", "AbortError")): void {
    this.#destroyed.abort(reason);
  }

  private canonical(input: LanguageModelPrompt): readonly TextMessage[] {
    return canonicalPrompt(input, this.#messages.length === 0, this.expected);
  }

  private answer(
    input: LanguageModelPrompt,
    options: LanguageModelPromptOptions,
    onText: (text: string) => void,
  ): Promise<string> {
    return this.inTurn(options.signal, async (signal) => {
      checkThinking(options.thinking, this.engine.info);
      const { thinking = this.thinking } = options;
      const added = this.canonical(input);
      let prompt = withConstraint(added, options);
      const steps: TextMessage[] = [];
      let text = "";
      for (let round = 0; ; round++) {
        // The answer needs at least one token.
        const { retained } = await this.makeRoom([...prompt, ...steps], this.contextWindow - 1, thinking);
        const answer = await this.complete(
          [...retained, ...prompt, ...steps],
          { constraint: options.responseConstraint, thinking },
          signal,
          onText,
        );
        text += answer.text;
        const isPrefix = round === 0 && isPrefixed(added);
        const message: TextMessage = {
          role: "assistant",
          content: (isPrefix ? prefixOf(added) : "") + answer.text,
          prefix: false,
        };
        if (answer.calls.length === 0) {
          const messages: readonly TextMessage[] = [
            ...retained,
            ...(isPrefixed(added) ? added.slice(0, -1) : added),
            ...steps,
            message,
          ];
          this.#contextUsage = await this.count(messages);
          this.#messages = messages;
          return text;
        }
        if (round === MAX_TOOL_ROUNDS)
          throw new DOMException(
            `The model called tools ${MAX_TOOL_ROUNDS} times in a row without an answer`,
            "OperationError",
          );
        const results = await Promise.all(answer.calls.map((call) => runTool(this.tools, call, signal)));
        if (isPrefix) prompt = prompt.slice(0, -1);
        steps.push(
          { ...message, calls: answer.calls },
          ...answer.calls.map(({ id }, index): TextMessage => ({
            role: "tool",
            content: results[index] ?? "",
            prefix: false,
            callId: id,
          })),
        );
      }
    });
  }

  /** One answer of the engine: its text and its tool calls. */
  private async complete(
    messages: readonly TextMessage[],
    { constraint, thinking }: { readonly constraint: object | undefined; readonly thinking: boolean | undefined },
    signal: AbortSignal,
    onText: (text: string) => void,
  ): Promise<{ readonly text: string; readonly calls: readonly ToolCall[] }> {
    const chunks = await this.engine.chat.completions.create(
      {
        messages: messages.map(chatMessage),
        temperature: this.temperature,
        top_k: this.topK,
        continue_final_message: isPrefixed(messages),
        response_format: responseFormat(constraint),
        enable_thinking: thinking,
        ...this.toolParams(),
        stream: true,
      },
      { signal },
    );
    let text = "";
    const calls: { id: string; name: string; arguments: string }[] = [];
    for await (const { choices } of chunks) {
      const { content = "", tool_calls: deltas = [] } = choices[0]?.delta ?? {};
      if (content !== "") onText(content);
      text += content;
      for (const { index, id, function: called } of deltas) {
        const call = (calls[index] ??= { id: "", name: "", arguments: "" });
        call.id += id ?? "";
        call.name += called?.name ?? "";
        call.arguments += called?.arguments ?? "";
      }
    }
    return { text, calls };
  }

  private toolParams(): { readonly tools?: readonly FunctionTool[] } {
    return this.tools.length === 0 ? {} : { tools: functionTools(this.tools) };
  }

  /**
   * Drops the oldest turns, never the system message, until ``added`` fits as well. Throws QuotaExceededError if it
   * does not fit even then.
   */
  private async makeRoom(
    added: readonly TextMessage[],
    most: number,
    thinking = this.thinking,
  ): Promise<{ readonly retained: readonly TextMessage[]; readonly usage: number }> {
    let retained = this.#messages;
    for (;;) {
      const usage = await this.count([...retained, ...added], thinking);
      if (usage <= most) {
        if (retained.length < this.#messages.length) this.overflow();
        return { retained, usage };
      }
      const oldest = retained.findIndex(({ role }) => role !== "system");
      if (oldest < 0) throw quotaExceeded(usage, this.contextWindow);
      const next = retained.findIndex(({ role }, index) => index > oldest && role === "user");
      retained = [...retained.slice(0, oldest), ...(next < 0 ? [] : retained.slice(next))];
    }
  }

  private overflow(): void {
    const event = new Event("contextoverflow");
    this.dispatchEvent(event);
    this.oncontextoverflow?.(event);
  }

  private async count(messages: readonly TextMessage[], thinking = this.thinking): Promise<number> {
    if (messages.length === 0) return 0;
    return this.engine
      .countTokens(messages.map(chatMessage), {
        continueFinalMessage: isPrefixed(messages),
        ...(thinking !== undefined && { variables: { enable_thinking: thinking } }),
        ...this.toolParams(),
      })
      .catch((error: unknown) => {
        throw domError(error);
      });
  }

  /** Runs a call after the calls before it have ended. */
  private inTurn<T>(callSignal: AbortSignal | undefined, run: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const signal = anySignal(callSignal, this.#destroyed.signal);
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

/**
 * Throws TypeError, because a text such as "off" would be true if it were converted, or NotSupportedError for a model
 * without the switch. Before the model is loaded, there is no ``info``.
 */
export function checkThinking(thinking: unknown, info?: Pick<EngineInfo, "model" | "thinking">): void {
  if (thinking === undefined) return;
  if (typeof thinking !== "boolean") throw new TypeError(`thinking is a ${typeof thinking}, it must be true or false`);
  if (info?.thinking === false) {
    const message = `thinking has no effect on ${info.model}: its chat template has no enable_thinking; leave it out`;
    throw new DOMException(message, "NotSupportedError");
  }
}

const chatMessage = ({ role, content, calls, callId }: TextMessage): ChatCompletionMessageParam => ({
  role,
  content,
  ...(calls === undefined
    ? {}
    : { tool_calls: calls.map(({ id, ...called }) => ({ id, type: "function", function: called })) }),
  ...(callId === undefined ? {} : { tool_call_id: callId }),
});

/** An assistant's message has neither pictures nor sound. */
function prefixOf(messages: readonly TextMessage[]): string {
  const content = messages.at(-1)?.content;
  return typeof content === "string" ? content : "";
}

const isPrefixed = (messages: readonly TextMessage[]): boolean => messages.at(-1)?.prefix === true;

function responseFormat(constraint: object | undefined): ResponseFormat {
  if (constraint === undefined) return { type: "text" };
  if (constraint instanceof RegExp && /[imsv]/.test(constraint.flags)) {
    throw new DOMException(
      `responseConstraint has the flags '${constraint.flags}', which are not supported`,
      "NotSupportedError",
    );
  }
  if (constraint instanceof RegExp) return { type: "regex", pattern: constraint.source };
  return {
    type: "json_schema",
    json_schema: { name: "response", schema: constraint as Readonly<Record<string, unknown>> },
  };
}

/** Appends a description of the constraint to the last user message, unless omitResponseConstraintInput is set. */
function withConstraint(
  messages: readonly TextMessage[],
  { responseConstraint, omitResponseConstraintInput = false }: LanguageModelPromptOptions,
): readonly TextMessage[] {
  if (responseConstraint === undefined) {
    if (omitResponseConstraintInput) throw new TypeError("omitResponseConstraintInput needs a responseConstraint");
    return messages;
  }
  if (typeof (responseConstraint as unknown) !== "object")
    throw new TypeError("responseConstraint must be a JSON schema or a RegExp");
  if (omitResponseConstraintInput) return messages;
  const isPattern = responseConstraint instanceof RegExp;
  const hint = isPattern
    ? `Answer with a text that matches ${String(responseConstraint)}`
    : `Answer with JSON of this schema: ${JSON.stringify(responseConstraint)}`;
  const last = messages.findLastIndex(({ role }) => role === "user");
  const withHint = (content: TextMessage["content"]): TextMessage["content"] =>
    typeof content === "string" ? `${content}\n\n${hint}` : [...content, { type: "text", text: `\n\n${hint}` }];
  return messages.map((message, index) =>
    index === last ? { ...message, content: withHint(message.content) } : message,
  );
}

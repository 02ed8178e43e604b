// What of an answer is shown: chunks of whichever side writes flow in, chunks of the one answer flow out, under one id, each with what belongs to it: the
// role, the log-probabilities that were asked for, the route where it is due.

import type {
  ChatCompletionChunk,
  ChatCompletionDelta,
  ChatCompletionLogprobs,
  ChatCompletionTokenLogprob,
  ChatFinishReason,
  CompletionUsage,
  Route,
} from "../../api/types.js";
import type { Clock } from "../sides/clock.js";
import type { AnswerSoFar } from "../sides/sides.js";

export interface ShownOptions {
  readonly clock: Clock;
  /** Of each token so many are shown; null where log-probabilities are not. */
  readonly alternatives: number | null;
  readonly push: (chunk: ChatCompletionChunk) => void;
  readonly route: () => Route;
}

export class ShownAnswer {
  readonly #head: Pick<ChatCompletionChunk, "id" | "created" | "object">;
  readonly #startedAt: number;
  #firstAt: number | null = null;
  #roleDue = true;
  #routeDue = true;
  #model = "";
  /** Tokens without a text of their own. */
  #waiting: ChatCompletionTokenLogprob[] = [];
  /** The tokens of what stands: how many, and those that were told one by one. */
  #tokens = 0;
  #told: ChatCompletionTokenLogprob[] = [];
  #reasoning = "";

  constructor(private readonly options: ShownOptions) {
    const { clock } = options;
    // Not randomUUID, which a page has only over https: elsewhere near cannot answer, but far can.
    const id = Math.random().toString(36).slice(2);
    this.#head = { id: `chatcmpl-${id}`, created: Math.floor(clock.date() / 1000), object: "chat.completion.chunk" };
    this.#startedAt = clock.now();
  }

  show({ choices: [choice], model }: ChatCompletionChunk): void {
    if (choice === undefined) return;
    const tokens = this.tokensWith(choice.logprobs?.content ?? []);
    this.#firstAt ??= this.options.clock.now();
    this.#tokens += Math.max(1, tokens.length);
    this.#told.push(...tokens);
    this.#model = model;
    const { content, tool_calls: calls, reasoning_content: thought } = choice.delta;
    this.#reasoning += thought ?? "";
    const delta = {
      ...(content === undefined ? {} : { content }),
      ...(thought && { reasoning_content: thought }),
      ...(calls === undefined ? {} : { tool_calls: calls }),
    };
    this.push(delta, { logprobs: this.logprobsOf(tokens), finish_reason: null }, this.#routeDue);
  }

  /** Tokens that nothing was shown of: they come with the next text. */
  wait(tokens: readonly ChatCompletionTokenLogprob[]): void {
    this.#waiting.push(...tokens);
  }

  /** Another side writes from now on. */
  switched(): void {
    this.#routeDue = true;
    this.#waiting = [];
  }

  withdraw(): void {
    this.#tokens = 0;
    this.#told = [];
    this.#reasoning = "";
  }

  /** What stands shown, which is ``text``. */
  soFar(text: string): AnswerSoFar {
    const ids = this.#told.flatMap(({ token_id: id }) => (id === undefined ? [] : [id]));
    // Of a token that a stop string or a cut character held back a part may be shown: then the text alone says where it stands.
    const isAll = ids.length === this.#told.length && this.#told.map(({ token }) => token).join("") === text;
    return { text, reasoning: this.#reasoning, tokenIds: isAll ? ids : null, tokens: this.#tokens };
  }

  finish(finishReason: ChatFinishReason, usage: CompletionUsage): void {
    const now = this.options.clock.now();
    const first = this.#firstAt ?? now;
    const later = usage.completion_tokens - 1;
    const speed = later > 0 && now > first ? (later * 1000) / (now - first) : null;
    const timings = {
      time_to_first_token_ms: first - this.#startedAt,
      total_ms: now - this.#startedAt,
      tokens_per_second: speed,
    };
    // A reader tells by a chunk before the last that a text was withdrawn, also where nothing came after it.
    if (this.#routeDue) this.push({ content: "" }, { logprobs: null, finish_reason: null }, true);
    this.push({}, { logprobs: this.logprobsOf(this.tokensWith([])), finish_reason: finishReason }, true, { timings });
    this.options.push({ ...this.#head, model: this.#model, choices: [], usage });
  }

  /** The tokens, after those that waited. */
  private tokensWith(told: readonly ChatCompletionTokenLogprob[]): readonly ChatCompletionTokenLogprob[] {
    const tokens = [...this.#waiting, ...told];
    this.#waiting = [];
    return tokens;
  }

  private logprobsOf(tokens: readonly ChatCompletionTokenLogprob[]): ChatCompletionLogprobs | null {
    const { alternatives: count } = this.options;
    if (count === null || tokens.length === 0) return null;
    return {
      content: tokens.map((token) => ({ ...token, top_logprobs: token.top_logprobs.slice(0, count) })),
      refusal: null,
    };
  }

  private push(
    delta: ChatCompletionDelta,
    rest: Pick<ChatCompletionChunk["choices"][number], "logprobs" | "finish_reason">,
    withRoute: boolean,
    more: Partial<ChatCompletionChunk> = {},
  ): void {
    const whole = this.#roleDue ? { role: "assistant" as const, ...delta } : delta;
    const route = withRoute ? { route: this.options.route() } : {};
    this.#roleDue = false;
    if (withRoute) this.#routeDue = false;
    this.options.push({
      ...this.#head,
      model: this.#model,
      choices: [{ index: 0, delta: whole, ...rest }],
      ...more,
      ...route,
    });
  }
}

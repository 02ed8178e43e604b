// The part of an answer that is shown: makes the chunks of one answer, under one id, from the chunks of either side. It
// adds the role, the requested log-probabilities, and the route and the transcripts whenever they change.

import type {
  ChatCompletionAnnotation,
  ChatCompletionChunk,
  ChatCompletionDelta,
  ChatCompletionLogprobs,
  ChatCompletionTokenLogprob,
  ChatFinishReason,
  CompletionUsage,
  Route,
  SoundTranscript,
} from "../../api/types.js";
import type { Clock } from "../sides/clock.js";
import type { AnswerSoFar } from "../sides/sides.js";

export interface ShownOptions {
  readonly clock: Clock;
  /** The number of alternatives shown for each token; null for no log-probabilities. */
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
  /** Those that were sent last. */
  #transcripts: readonly SoundTranscript[] | undefined;
  /** Tokens without a text of their own yet. */
  #waiting: ChatCompletionTokenLogprob[] = [];
  /** The tokens of the text shown: their number, that of their chunks, and those listed with log-probabilities. */
  #tokens = 0;
  #chunks = 0;
  #listed: ChatCompletionTokenLogprob[] = [];
  #reasoning = "";
  /** Far's citations, which come with the end. */
  readonly cited: ChatCompletionAnnotation[] = [];

  constructor(private readonly options: ShownOptions) {
    const { clock } = options;
    // Not randomUUID, which pages have only over https: elsewhere near cannot answer, but far can.
    const id = Math.random().toString(36).slice(2);
    this.#head = { id: `chatcmpl-${id}`, created: Math.floor(clock.date() / 1000), object: "chat.completion.chunk" };
    this.#startedAt = clock.now();
  }

  /** ``transcripts``: what the chunk's side has heard. */
  show({ choices: [choice], model }: ChatCompletionChunk, transcripts?: readonly SoundTranscript[]): void {
    if (choice === undefined) return;
    const tokens = this.#tokensWith(choice.logprobs?.content ?? []);
    this.#firstAt ??= this.options.clock.now();
    this.#tokens += Math.max(1, tokens.length);
    this.#chunks++;
    this.#listed.push(...tokens);
    this.#model = model;
    const { content, tool_calls: calls, reasoning_content: thought } = choice.delta;
    this.#reasoning += thought ?? "";
    const delta = {
      ...(content === undefined ? {} : { content }),
      ...(thought && { reasoning_content: thought }),
      ...(calls === undefined ? {} : { tool_calls: calls }),
    };
    this.#push(delta, { logprobs: this.#logprobsOf(tokens), finish_reason: null }, this.#routeDue, transcripts);
  }

  /** Tokens without a shown text: they come with the next text. */
  wait(tokens: readonly ChatCompletionTokenLogprob[]): void {
    this.#waiting.push(...tokens);
  }

  /** Another side writes from now on. */
  switched(): void {
    this.#routeDue = true;
    this.#waiting = [];
  }

  withdraw(): void {
    this.#tokens = this.#chunks = 0;
    this.#listed = [];
    this.#reasoning = "";
    this.cited.length = 0;
  }

  /** The shown part of the answer; its text is ``text``. */
  soFar(text: string): AnswerSoFar {
    const ids = this.#listed.flatMap(({ token_id: id }) => (id === undefined ? [] : [id]));
    // A stop string or a cut character can hold back part of a token. Then only the text shows how far the answer is.
    const isAll = ids.length === this.#listed.length && this.#listed.map(({ token }) => token).join("") === text;
    return {
      text,
      reasoning: this.#reasoning,
      tokenIds: isAll ? ids : null,
      tokens: this.#tokens,
      chunks: this.#chunks,
    };
  }

  finish(finishReason: ChatFinishReason, usage: CompletionUsage, transcripts?: readonly SoundTranscript[]): void {
    const now = this.options.clock.now();
    const first = this.#firstAt ?? now;
    const later = usage.completion_tokens - 1;
    const speed = later > 0 && now > first ? (later * 1000) / (now - first) : null;
    const timings = {
      time_to_first_token_ms: first - this.#startedAt,
      total_ms: now - this.#startedAt,
      tokens_per_second: speed,
    };
    // A chunk before the last one tells the reader that a text was withdrawn, even if no text followed.
    if (this.#routeDue) this.#push({ content: "" }, { logprobs: null, finish_reason: null }, true, transcripts);
    this.#push(
      this.cited.length > 0 ? { annotations: this.cited } : {},
      { logprobs: this.#logprobsOf(this.#tokensWith([])), finish_reason: finishReason },
      true,
      transcripts,
      { timings },
    );
    this.options.push({ ...this.#head, model: this.#model, choices: [], usage });
  }

  /** The tokens after those that waited. */
  #tokensWith(tokens: readonly ChatCompletionTokenLogprob[]): readonly ChatCompletionTokenLogprob[] {
    const all = [...this.#waiting, ...tokens];
    this.#waiting = [];
    return all;
  }

  #logprobsOf(tokens: readonly ChatCompletionTokenLogprob[]): ChatCompletionLogprobs | null {
    const { alternatives: count } = this.options;
    if (count === null || tokens.length === 0) return null;
    return {
      content: tokens.map((token) => ({ ...token, top_logprobs: token.top_logprobs.slice(0, count) })),
      refusal: null,
    };
  }

  #push(
    delta: ChatCompletionDelta,
    rest: Pick<ChatCompletionChunk["choices"][number], "logprobs" | "finish_reason">,
    withRoute: boolean,
    transcripts?: readonly SoundTranscript[],
    more: Partial<ChatCompletionChunk> = {},
  ): void {
    const deltaWithRole = this.#roleDue ? { role: "assistant" as const, ...delta } : delta;
    const route = withRoute ? { route: this.options.route() } : {};
    const isHeard = transcripts !== undefined && transcripts !== this.#transcripts;
    if (isHeard) this.#transcripts = transcripts;
    this.#roleDue = false;
    if (withRoute) this.#routeDue = false;
    this.options.push({
      ...this.#head,
      model: this.#model,
      choices: [{ index: 0, delta: deltaWithRole, ...rest }],
      ...(isHeard && { transcripts: [...transcripts] }),
      ...more,
      ...route,
    });
  }
}

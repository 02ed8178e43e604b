// One answer as it runs: the answer machine decides, and here its effects are carried out. Chunks of the sides flow in; chunks of the one answer flow out,
// and word of what is withdrawn.

import type {
  ChatCompletionChunk,
  ChatCompletionTokenLogprob,
  ChatFinishReason,
  CompletionUsage,
  Route,
} from "../../api/types.js";
import { Unavailable } from "../../errors.js";
import type { Rules, State } from "./answer_machine.js";
import { begin, step, timedSide } from "./answer_machine.js";
import type { Clock } from "../sides/clock.js";
import type { Decision } from "../decision/decision.js";
import type { Side } from "../decision/decision.js";
import type { Effect, Event, Fail, TimerName } from "./events.js";
import { failureOf } from "./failure.js";
import { ShownAnswer } from "./shown_answer.js";
import type { AnswerSoFar, PlainParams, Side as Answering } from "../sides/sides.js";
import type { Watch } from "./watch.js";

/** What is told of the sides while they answer. */
export interface Observer {
  asked(side: Side): void;
  circuit(side: Side, outcome: "succeeded" | "failed"): void;
  /** A side says no more, for whatever reason. */
  over(side: Side, part: Part): void;
}

/** What a side gave when it was asked once. Times in milliseconds of the clock. */
export interface Part {
  readonly askedAt: number;
  readonly firstAt: number | null;
  readonly lastAt: number | null;
  /** As many as were counted. */
  readonly tokens: number;
  /** Null where the side did not tell. */
  readonly usage: CompletionUsage | null;
  /** It was not broken off. */
  readonly whole: boolean;
}

export interface AnswerJob {
  readonly params: PlainParams;
  readonly decision: Decision;
  /** The other side may be asked too. */
  readonly standby: boolean;
  readonly rules: Rules;
  readonly sides: Readonly<Record<Side, Answering>>;
  /** Lets far compute the prompt. Never rejected. */
  readonly warm: (signal: AbortSignal) => Promise<void>;
  /** Null where near answers are not watched. */
  readonly watch: Watch | null;
  /** Whether a whole near answer fits the response format; null where there is none. */
  readonly fits: ((text: string) => boolean) | null;
  /** What each side is asked for; null for none. The caller sees those that it asked for. */
  readonly logprobs: Readonly<Record<Side, number | null>>;
  /** Of each token so many are shown; null where log-probabilities are not. */
  readonly shownAlternatives: number | null;
  readonly clock: Clock;
  readonly observer: Observer;
  readonly signal: AbortSignal;
}

export type AnswerItem =
  { readonly type: "chunk"; readonly chunk: ChatCompletionChunk } | { readonly type: "withdraw" };

/** Before a side is asked again, between half and all of it. */
const RETRY_MS = 100;

/** ``ended``: its finish_reason, once that came. */
type OpenPart = { -readonly [K in keyof Part]: Part[K] } & {
  readonly from: AnswerSoFar | null;
  readonly controller: AbortController;
  ended: string | null;
};

/**
 * Yields the chunks of the answer, the last with its usage and no choices. Asks nobody before it is iterated; leaving the loop ends it. Throws what the side
 * throws that was to answer last, Unavailable where none was, or the signal's reason.
 */
export async function* runAnswer(job: AnswerJob): AsyncGenerator<AnswerItem, void, undefined> {
  const answer = new RunningAnswer(job);
  const abort = (): void => {
    answer.abort();
  };
  job.signal.throwIfAborted();
  job.signal.addEventListener("abort", abort);
  try {
    answer.start();
    yield* answer.items();
  } finally {
    job.signal.removeEventListener("abort", abort);
    answer.abort();
  }
}

class RunningAnswer {
  #state: State;
  readonly #parts: Partial<Record<Side, OpenPart>> = {};
  readonly #errors: Partial<Record<Side, unknown>> = {};
  readonly #timers = new Map<TimerName, () => void>();
  /** Breaks off the warm-up. */
  readonly #warming = new AbortController();
  readonly #items: AnswerItem[] = [];
  #closed: { readonly error?: unknown } | null = null;
  #wake: () => void = () => undefined;
  readonly #shown: ShownAnswer;

  constructor(private readonly job: AnswerJob) {
    this.#state = begin(job.rules);
    this.#shown = new ShownAnswer({
      clock: job.clock,
      alternatives: job.shownAlternatives,
      push: (chunk) => {
        this.push({ type: "chunk", chunk });
      },
      route: () => this.route(),
    });
  }

  start(): void {
    const { side, reason } = this.job.decision;
    this.send({ type: "start", side, reason, standby: this.job.standby });
  }

  /** Ends it where it is, if it is not over. */
  abort(): void {
    if (this.#closed !== null) return;
    this.send({ type: "abort" });
    this.close({ error: this.job.signal.reason });
  }

  async *items(): AsyncGenerator<AnswerItem, void, undefined> {
    for (;;) {
      const item = this.#items.shift();
      if (item !== undefined) yield item;
      else if (this.#closed === null) await new Promise<void>((resolve) => (this.#wake = resolve));
      else if ("error" in this.#closed) throw this.#closed.error;
      else return;
    }
  }

  /** ``chunk`` is what a token event came with. */
  private send(event: Event, chunk?: ChatCompletionChunk): void {
    const [state, effects] = step(this.#state, event);
    this.#state = state;
    for (const effect of effects) this.carryOut(effect, chunk);
  }

  private carryOut(effect: Effect, chunk: ChatCompletionChunk | undefined): void {
    const { job } = this;
    switch (effect.type) {
      case "ask":
        // What it has computed stays in the server's cache.
        if (effect.side === "far") this.#warming.abort();
        void this.listen(
          effect.side,
          effect.attempt,
          effect.continue_from === null ? null : this.#shown.soFar(effect.continue_from),
        );
        return;
      case "warm":
        void job.warm(this.#warming.signal);
        return;
      case "cancel":
        this.#parts[effect.side]?.controller.abort();
        return;
      case "emit":
        if (chunk !== undefined) this.#shown.show(chunk);
        return;
      case "withdraw":
        this.#shown.withdraw();
        this.push({ type: "withdraw" });
        return;
      case "switch":
        this.#shown.switched();
        return;
      case "finish":
        this.#shown.finish(effect.finish_reason as ChatFinishReason, wholeUsage(this.#parts[effect.side]));
        this.close({});
        return;
      case "fail":
        this.close({ error: this.errorOf(effect) });
        return;
      case "timer":
        this.#timers.get(effect.name)?.();
        this.#timers.set(
          effect.name,
          job.clock.after(effect.ms, () => {
            this.#timers.delete(effect.name);
            this.due(effect.name);
          }),
        );
        return;
      case "cancel_timer":
        this.#timers.get(effect.name)?.();
        this.#timers.delete(effect.name);
        return;
      case "circuit":
        job.observer.circuit(effect.side, effect.outcome);
        return;
      default:
        effect satisfies never;
    }
  }

  private due(timer: TimerName): void {
    const side = timedSide(timer, this.#state);
    const part = side === null ? undefined : this.#parts[side];
    if (side === null || part === undefined || part.ended === null) {
      this.send({ type: "tick", timer });
      return;
    }
    // The answer is whole; nobody waits longer for its usage.
    this.ended(side, this.#state[side].attempts, part.ended);
    part.controller.abort();
  }

  /** Asks a side, and tells the machine what it says. */
  private async listen(side: Side, attempt: number, from: AnswerSoFar | null): Promise<void> {
    const { params, sides, logprobs, clock, observer } = this.job;
    const controller = new AbortController();
    const { signal } = controller;
    const part: OpenPart = {
      askedAt: clock.now(),
      firstAt: null,
      lastAt: null,
      tokens: 0,
      usage: null,
      whole: false,
      from,
      controller,
      ended: null,
    };
    const earlier = this.#errors[side];
    this.#parts[side] = part;
    let isAsked = false;
    try {
      if (attempt > 1 && earlier !== undefined) await this.patience(side, earlier, signal);
      signal.throwIfAborted();
      const chunks = sides[side].ask({ params, from, logprobs: logprobs[side], signal });
      observer.asked(side);
      isAsked = true;
      for await (const chunk of chunks) {
        if (signal.aborted) return;
        part.usage = chunk.usage ?? part.usage;
        part.ended = chunk.choices[0]?.finish_reason ?? part.ended;
        this.hear(side, attempt, part, chunk);
        // What it said may have been reason enough to stop it.
        if (controller.signal.aborted) return;
      }
      if (part.ended === null)
        throw new Unavailable(`The ${side} side's answer stopped before the end`, { retryable: true });
      this.ended(side, attempt, part.ended);
    } catch (error) {
      if (signal.aborted) return;
      if (part.ended !== null) {
        // The answer was whole before the connection broke.
        this.ended(side, attempt, part.ended);
        return;
      }
      this.#errors[side] = error;
      const { kind, retryable, waitMs } = failureOf(side, error);
      const inTime = waitMs === null || waitMs < this.job.rules[`${side}_first_token_ms`];
      this.send({ type: "failed", side, attempt, kind, retryable: retryable && inTime });
    } finally {
      if (isAsked) observer.over(side, part);
    }
  }

  /** What the side asked for, or a spread, so that what one failure threw back does not come again all at once. */
  private async patience(side: Side, error: unknown, signal: AbortSignal): Promise<void> {
    const milliseconds = failureOf(side, error).waitMs ?? RETRY_MS * (0.5 + Math.random() / 2);
    await new Promise<void>((resolve) => {
      const cancel = this.job.clock.after(milliseconds, resolve);
      signal.addEventListener("abort", () => {
        cancel();
        resolve();
      });
    });
  }

  private hear(side: Side, attempt: number, part: OpenPart, chunk: ChatCompletionChunk): void {
    const choice = chunk.choices[0];
    if (choice === undefined) return;
    const { content = "", tool_calls: calls = [], reasoning_content: thought = "" } = choice.delta;
    const isSilent = content + thought === "" && calls.length === 0;
    const tokens = choice.logprobs?.content ?? [];
    // A chunk with the role alone, or with the end alone, is no token.
    if (isSilent && tokens.length === 0) return;
    part.lastAt = this.job.clock.now();
    part.firstAt ??= part.lastAt;
    part.tokens += Math.max(1, tokens.length);
    this.send(
      { type: "token", side, attempt, text: content, tool_call: calls.length > 0, reasoning: thought !== "" },
      chunk,
    );
    if (this.#state.phase !== "running" || this.#state.side !== side) return;
    // It was not shown: its tokens come with the next text.
    if (isSilent) this.#shown.wait(tokens);
    if (side === "near") this.watch(tokens);
  }

  private watch(tokens: readonly ChatCompletionTokenLogprob[]): void {
    for (const { token, logprob, top_logprobs: alternatives } of tokens) {
      const reason =
        this.job.watch?.add({
          text: token,
          logprob,
          alternatives: alternatives.length === 0 ? null : alternatives.map((other) => other.logprob),
        }) ?? null;
      if (reason !== null) {
        this.send({ type: "escalate", reason });
        return;
      }
      if (this.job.watch?.doubts === true) this.send({ type: "doubt" });
    }
  }

  private ended(side: Side, attempt: number, finishReason: string): void {
    const { watch, fits } = this.job;
    const part = this.#parts[side];
    if (part !== undefined) part.whole = true;
    const runs = side === "near" && this.#state.side === "near" && this.#state.phase === "running";
    const reason =
      runs && fits !== null && !this.#state.toolCalls && !fits(this.#state.text)
        ? (watch?.schemaFailed() ?? null)
        : null;
    if (reason !== null) this.send({ type: "escalate", reason });
    this.send({ type: "end", side, attempt, finish_reason: finishReason });
  }

  private route(): Route {
    const { side, reason, switchedAt } = this.#state;
    const { decision } = this.job;
    return { side: side ?? "near", reason, scores: { ...decision.scores }, switched_at: switchedAt };
  }

  private errorOf({ side, kind, reason }: Fail): unknown {
    if (kind === "timeout" && side !== null)
      return new Unavailable(
        `The ${side} side sent nothing for too long; try again, or raise the policy's timeouts`,
        { code: reason },
      );
    const error = side === null ? undefined : this.#errors[side];
    if (error !== undefined) return error;
    return new Unavailable(`Nobody can answer: ${reason}`, { code: reason });
  }

  private push(item: AnswerItem): void {
    this.#items.push(item);
    this.#wake();
  }

  private close(how: { readonly error?: unknown }): void {
    if (this.#closed !== null) return;
    this.#closed = how;
    this.#warming.abort();
    for (const cancel of this.#timers.values()) cancel();
    this.#timers.clear();
    this.#wake();
  }
}

/** The whole answer's usage, as the side that ended it counts: what it went on from was its prompt. */
function wholeUsage(part: OpenPart | undefined): CompletionUsage {
  const before = part?.from?.tokens ?? 0;
  const told = part?.usage ?? { prompt_tokens: 0, completion_tokens: part?.tokens ?? 0 };
  const prompt = Math.max(0, told.prompt_tokens - (part?.usage === null ? 0 : before));
  const completion = told.completion_tokens + before;
  return { ...told, prompt_tokens: prompt, completion_tokens: completion, total_tokens: prompt + completion };
}

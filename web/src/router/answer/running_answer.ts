// One running answer: carries out the effects of the answer machine. It yields the chunks of the answer, and notices of
// text that is withdrawn.

import type {
  ChatCompletionChunk,
  ChatCompletionTokenLogprob,
  ChatFinishReason,
  CompletionUsage,
  Description,
  MaskedText,
  Route,
  SoundTranscript,
} from "../../api/types.js";
import { NearfarError } from "../../errors.js";
import type { Rules, State } from "../../shared/router/answer_machine.js";
import { begin, step, timedSide } from "../../shared/router/answer_machine.js";
import type { Clock } from "../sides/clock.js";
import type { Decision } from "../../shared/decision/decision.js";
import type { Side } from "../../shared/decision/decision.js";
import type { Effect, Event, Fail, TimerName } from "../../shared/router/events.js";
import type { Failure, SideError } from "../../shared/router/failures.js";
import { failError, failureOf, stopped } from "../../shared/router/failures.js";
import { totalUsage } from "../../shared/router/usage.js";
import { ShownAnswer } from "./shown_answer.js";
import type { ShownBefore } from "../hybrid_journal.js";
import type { AnswerSoFar, PlainParams, Side as AnsweringSide } from "../sides/sides.js";
import { LEFT } from "../sides/sides.js";
import type { Watch } from "../../shared/router/watch.js";

/** Gets reports about the sides while they answer. */
export interface Observer {
  requested(side: Side): void;
  circuit(side: Side, outcome: "succeeded" | "failed"): void;
  /** A side sends nothing more, for whatever reason. */
  ended(side: Side, part: Part): void;
}

/** The output of one attempt of a side. Times are in milliseconds of the clock. */
export interface Part {
  readonly requestedAt: number;
  readonly firstAt: number | null;
  readonly lastAt: number | null;
  /** The number of tokens that were counted. */
  readonly tokens: number;
  /** Null if the side did not report it. */
  readonly usage: CompletionUsage | null;
  /** It was not broken off. */
  readonly complete: boolean;
  /** The side failed before it sent anything. */
  readonly refused: boolean;
}

export interface AnswerJob {
  readonly params: PlainParams;
  readonly decision: Omit<Decision, "reason"> & { readonly reason: string };
  /** Whether the other side may be asked too. */
  readonly standby: boolean;
  readonly rules: Rules;
  /** How near failed before the decision; "late": it sent no token in its time. */
  readonly earlyFailure?: { readonly error: unknown } | "late" | null;
  /** What an earlier page has shown of the answer. */
  readonly begun?: ShownBefore | null;
  /** What the request has in place of media. */
  readonly descriptions?: readonly Description[];
  /** What far has received in place of private texts. */
  readonly masked?: () => readonly MaskedText[];
  readonly sides: Readonly<Record<Side, AnsweringSide>>;
  /** Lets far compute the prompt. It never rejects. */
  readonly warm: (signal: AbortSignal) => Promise<void>;
  /** Null if near answers are not watched. */
  readonly watch: Watch | null;
  /** The log-probabilities that each side must report; null for none. The caller gets those that it requested. */
  readonly logprobs: Readonly<Record<Side, number | null>>;
  /** The number of alternatives shown for each token; null for no log-probabilities. */
  readonly shownAlternatives: number | null;
  readonly clock: Clock;
  readonly observer: Observer;
  readonly signal: AbortSignal;
}

export type AnswerItem =
  | { readonly type: "chunk"; readonly chunk: ChatCompletionChunk }
  | { readonly type: "withdraw" };

/** ``ended``: its finish_reason, once that has arrived. ``transcripts``: what the side has heard. */
type OpenPart = { -readonly [K in keyof Part]: Part[K] } & {
  transcripts: readonly SoundTranscript[] | undefined;
  readonly from: AnswerSoFar | null;
  readonly controller: AbortController;
  ended: string | null;
};

/**
 * Yields the chunks of the answer, the last with its usage and no choices. It sends nothing before it is iterated;
 * leaving the loop ends the answer. Throws the error of the last side that was to answer, Unavailable if there was
 * none, or the signal's reason.
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
  /** The last error of each side, and the wait before the side is asked again. */
  readonly #errors: Partial<Record<Side, unknown>> = {};
  readonly #waitsMs = { near: 0, far: 0 };
  readonly #timers = new Map<TimerName, () => void>();
  /** Aborts the warm-up. */
  readonly #warming = new AbortController();
  readonly #items: AnswerItem[] = [];
  #closed: { readonly error?: unknown } | null = null;
  #hasLeft = false;
  #wake: () => void = () => undefined;
  readonly #shown: ShownAnswer;

  constructor(private readonly job: AnswerJob) {
    this.#state = begin(job.rules, job.begun ?? undefined);
    this.#shown = new ShownAnswer({
      clock: job.clock,
      alternatives: job.shownAlternatives,
      push: (chunk) => {
        this.#push({ type: "chunk", chunk });
      },
      route: () => this.#route(),
    });
  }

  start(): void {
    const { decision, standby, earlyFailure: early = null } = this.job;
    for (const chunk of this.job.begun?.chunks ?? []) this.#shown.show(chunk, chunk.transcripts);
    const near_failed =
      early === "late" ? ({ kind: "timeout", retryable: false } as const) : early && this.#failure("near", early.error);
    this.#send({ type: "start", side: decision.side, reason: decision.reason, standby, near_failed });
  }

  /** Ends the answer if it is not over. */
  abort(): void {
    if (this.#closed !== null) return;
    this.#hasLeft = true;
    this.#send({ type: "abort" });
    this.#close({ error: this.job.signal.reason });
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

  /** ``chunk`` is the chunk of a token event. */
  #send(event: Event, chunk?: ChatCompletionChunk): void {
    const [state, effects] = step(this.#state, event);
    this.#state = state;
    for (const effect of effects) this.#carryOut(effect, chunk);
  }

  #carryOut(effect: Effect, chunk: ChatCompletionChunk | undefined): void {
    const { job } = this;
    switch (effect.type) {
      case "ask":
        // The part that the warm-up has computed stays in the server's cache.
        if (effect.side === "far") this.#warming.abort();
        void this.#receive(
          effect.side,
          effect.attempt,
          effect.continue_from === null ? null : this.#shown.soFar(effect.continue_from),
        );
        return;
      case "warm":
        void job.warm(this.#warming.signal);
        return;
      case "cancel":
        this.#parts[effect.side]?.controller.abort(this.#hasLeft ? LEFT : undefined);
        return;
      case "emit":
        if (chunk !== undefined) this.#shown.show(chunk, this.#heard());
        return;
      case "withdraw":
        this.#shown.withdraw();
        this.#push({ type: "withdraw" });
        return;
      case "switch":
        this.#shown.switched();
        return;
      case "finish":
        this.#shown.finish(
          effect.finish_reason as ChatFinishReason,
          this.#usage(this.#parts[effect.side]),
          this.#heard(effect.side),
        );
        this.#close({});
        return;
      case "fail":
        this.#close({ error: this.#errorOf(effect) });
        return;
      case "timer":
        this.#timers.get(effect.name)?.();
        this.#timers.set(
          effect.name,
          job.clock.after(effect.ms, () => {
            this.#timers.delete(effect.name);
            this.#due(effect.name);
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

  #due(timer: TimerName): void {
    const side = timedSide(timer, this.#state);
    const part = side === null ? undefined : this.#parts[side];
    if (side === null || part?.ended == null) {
      this.#send({ type: "tick", timer });
      return;
    }
    // The answer is complete; the router does not wait longer for its usage.
    this.#ended(side, this.#state[side].attempts, part.ended);
    part.controller.abort();
  }

  /** Sends the request to a side and passes its output to the machine. */
  async #receive(side: Side, attempt: number, from: AnswerSoFar | null): Promise<void> {
    const { params, sides, logprobs, clock, observer } = this.job;
    const controller = new AbortController();
    const { signal } = controller;
    const part: OpenPart = {
      requestedAt: clock.now(),
      firstAt: null,
      lastAt: null,
      tokens: 0,
      usage: null,
      complete: false,
      refused: false,
      from,
      controller,
      ended: null,
      transcripts: undefined,
    };
    const waitMs = this.#waitsMs[side];
    this.#waitsMs[side] = 0;
    this.#parts[side] = part;
    let isRequested = false;
    try {
      if (waitMs > 0) await this.#wait(waitMs, signal);
      signal.throwIfAborted();
      part.requestedAt = clock.now();
      const chunks = sides[side].answer({ params, from, logprobs: logprobs[side], signal });
      observer.requested(side);
      isRequested = true;
      for await (const chunk of chunks) {
        if (signal.aborted) return;
        part.usage = chunk.usage ?? part.usage;
        part.ended = chunk.choices[0]?.finish_reason ?? part.ended;
        part.transcripts = chunk.transcripts ?? part.transcripts;
        this.#handleChunk(side, attempt, part, chunk);
        // The last chunk may have stopped the side.
        if (controller.signal.aborted) return;
      }
      if (part.ended === null) throw stopped(side);
      this.#ended(side, attempt, part.ended);
    } catch (error) {
      if (signal.aborted) return;
      if (part.ended !== null) {
        // The answer was complete before the connection broke.
        this.#ended(side, attempt, part.ended);
        return;
      }
      part.refused = part.firstAt === null;
      this.#send({ type: "failed", side, attempt, ...this.#failure(side, error) });
    } finally {
      if (isRequested) observer.ended(side, part);
    }
  }

  #failure(side: Side, error: unknown): Pick<Failure, "kind" | "retryable"> {
    const { wait_ms, ...failure } = failureOf(side, sideError(error), this.#state, Math.random());
    this.#errors[side] = error;
    this.#waitsMs[side] = wait_ms;
    return failure;
  }

  async #wait(milliseconds: number, signal: AbortSignal): Promise<void> {
    await new Promise<void>((resolve) => {
      const cancel = this.job.clock.after(milliseconds, resolve);
      signal.addEventListener("abort", () => {
        cancel();
        resolve();
      });
    });
  }

  #handleChunk(side: Side, attempt: number, part: OpenPart, chunk: ChatCompletionChunk): void {
    const choice = chunk.choices[0];
    if (choice === undefined) return;
    const { content = "", tool_calls: calls = [], reasoning_content: thought = "", annotations } = choice.delta;
    if (annotations && this.#state.side === side) this.#shown.cited.push(...annotations);
    const isSilent = content + thought === "" && calls.length === 0;
    const tokens = choice.logprobs?.content ?? [];
    // A chunk with only a role or only an end is not a token.
    if (isSilent && tokens.length === 0) return;
    part.lastAt = this.job.clock.now();
    part.firstAt ??= part.lastAt;
    part.tokens += Math.max(1, tokens.length);
    this.#send(
      { type: "token", side, attempt, text: content, tool_call: calls.length > 0, reasoning: thought !== "" },
      chunk,
    );
    if (this.#state.phase !== "running" || this.#state.side !== side) return;
    // Nothing was shown of it: its tokens come with the next text.
    if (isSilent) this.#shown.wait(tokens);
    if (side === "near") this.#watch(tokens);
  }

  #watch(tokens: readonly ChatCompletionTokenLogprob[]): void {
    for (const { token, logprob, top_logprobs: alternatives } of tokens) {
      const reason =
        this.job.watch?.add({
          text: token,
          logprob,
          alternatives: alternatives.length === 0 ? null : alternatives.map((other) => other.logprob),
        }) ?? null;
      if (reason !== null) {
        this.#send({ type: "escalate", reason });
        return;
      }
      if (this.job.watch?.doubts === true) this.#send({ type: "doubt" });
    }
  }

  #ended(side: Side, attempt: number, finishReason: string): void {
    const part = this.#parts[side];
    if (part !== undefined) part.complete = true;
    this.#send({ type: "end", side, attempt, finish_reason: finishReason });
  }

  #route(): Route {
    const { decision, descriptions = [] } = this.job;
    const masked = this.job.masked?.() ?? [];
    // What was shown before is shown before the start.
    const { side, reason, switchedAt } = this.#state.side === null ? { ...this.#state, ...decision } : this.#state;
    return {
      side: side ?? "near",
      reason,
      scores: { ...decision.scores },
      switched_at: switchedAt,
      ...(descriptions.length > 0 && { described: descriptions.map((each) => ({ ...each })) }),
      ...(masked.length > 0 && { masked: masked.map((each) => ({ ...each })) }),
    };
  }

  #errorOf(fail: Fail): unknown {
    const known = fail.side === null || fail.kind === "timeout" ? undefined : this.#errors[fail.side];
    return known ?? failError(fail, this.#state);
  }

  #usage(part: OpenPart | undefined): CompletionUsage {
    return totalUsage(part?.usage ?? null, part?.tokens ?? 0, part?.from?.tokens ?? 0);
  }

  /** What the side that writes has heard. */
  #heard(side = this.#state.side): OpenPart["transcripts"] {
    return side === null ? undefined : this.#parts[side]?.transcripts;
  }

  #push(item: AnswerItem): void {
    this.#items.push(item);
    this.#wake();
  }

  #close(how: { readonly error?: unknown }): void {
    if (this.#closed !== null) return;
    this.#closed = how;
    this.#warming.abort();
    for (const cancel of this.#timers.values()) cancel();
    this.#timers.clear();
    this.#wake();
  }
}

function sideError(error: unknown): SideError {
  return error instanceof NearfarError ? { error: error.code, ...error.details } : {};
}

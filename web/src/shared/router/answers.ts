// The running answers of Python by number. They stay here, because their texts grow with each token.

import type { Side } from "../decision/decision.js";
import type { State } from "./answer_machine.js";
import { begin, step, timedSide } from "./answer_machine.js";
import type { Rules } from "./answer_machine.js";
import type { Event, Fail, TimerName } from "./events.js";
import type { Failure, SideError } from "./failures.js";
import { failError, failureOf } from "./failures.js";
import { Watch } from "./watch.js";
import type { WatchRules, WatchedToken } from "./watch.js";

interface Answer {
  state: State;
  readonly watch: Watch | null;
}

const answers = new Map<number, Answer>();
let last = 0;

/** The number of a new answer. ``watched`` null: for an answer without a watch. */
export function openAnswer(rules: Rules, watched: WatchRules | null): number {
  last += 1;
  answers.set(last, { state: begin(rules), watch: watched === null ? null : new Watch(watched) });
  return last;
}

/** The effects of an event, and what the answer's driver needs of the state after it. */
export function stepAnswer(id: number, event: Event): object {
  const answer = answerOf(id);
  const [state, effects] = step(answer.state, event);
  answer.state = state;
  const { phase, side, reason, switchedAt } = state;
  return { effects, phase, side, reason, switched_at: switchedAt };
}

/** The first reason to escalate that tokens give, if there is one, and whether the watch doubts. */
export function watchAnswer(id: number, tokens: readonly WatchedToken[]): object {
  const { watch } = answerOf(id);
  const reasons = tokens.map((token) => watch?.add(token) ?? null);
  return { reason: reasons.find((each) => each !== null) ?? null, doubts: watch?.doubts ?? false };
}

/** As `failureOf`, of a side that still answers. */
export function answerFailure(id: number, side: Side, error: SideError, random: number): Failure {
  return failureOf(side, error, answerOf(id).state, random);
}

/** Throws `failError`. */
export function failAnswer(id: number, fail: Fail): never {
  throw failError(fail, answerOf(id).state);
}

/** The side that a timer waits for; null for the hedge timer. */
export function answerTimedSide(id: number, timer: TimerName): Side | null {
  return timedSide(timer, answerOf(id).state);
}

export function closeAnswer(id: number): void {
  answers.delete(id);
}

function answerOf(id: number): Answer {
  const answer = answers.get(id);
  if (answer === undefined) throw new Error(`there is no answer ${id}`);
  return answer;
}

// The running answers of Python by number. They stay here, because their texts grow with each token.

import type { State } from "./answer_machine.js";
import { begin, step } from "./answer_machine.js";
import type { Rules } from "./answer_machine.js";
import type { Event } from "./events.js";
import { Watch } from "./watch.js";
import type { WatchRules, WatchedToken } from "./watch.js";

interface Answer {
  state: State;
  readonly watch: Watch | null;
}

const answers = new Map<number, Answer>();
let last = 0;

/** The number of a new answer. ``rules``: Rules. ``watched``: WatchRules, or null for an answer without a watch. */
export function openAnswer(rules: string, watched: string): string {
  const escalation = JSON.parse(watched) as WatchRules | null;
  last += 1;
  answers.set(last, {
    state: begin(JSON.parse(rules) as Rules),
    watch: escalation === null ? null : new Watch(escalation),
  });
  return String(last);
}

/** The effects of an event, and what the answer's driver needs of the state after it. */
export function stepAnswer(id: string, event: string): string {
  const answer = answerOf(id);
  const [state, effects] = step(answer.state, JSON.parse(event) as Event);
  answer.state = state;
  const { phase, side, reason, switchedAt } = state;
  return JSON.stringify({ effects, phase, side, reason, switched_at: switchedAt });
}

/** The first reason to escalate that tokens give, if there is one, and whether the watch doubts. */
export function watchAnswer(id: string, tokens: string): string {
  const { watch } = answerOf(id);
  const reasons = (JSON.parse(tokens) as readonly WatchedToken[]).map((token) => watch?.add(token) ?? null);
  const reason = reasons.find((each) => each !== null) ?? null;
  return JSON.stringify({ reason, doubts: watch?.doubts ?? false });
}

export function closeAnswer(id: string): string {
  answers.delete(Number(id));
  return "null";
}

function answerOf(id: string): Answer {
  const answer = answers.get(Number(id));
  if (answer === undefined) throw new Error(`there is no answer ${id}`);
  return answer;
}

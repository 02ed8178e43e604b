// Where a pattern matches. As `Automaton.test`, a search follows all states at once, each with the first start of a match
// that reaches it, so one match takes linear time.

import type { Automaton, Kind, State, Visits } from "../decision/automaton.js";
import { holds, kindOf } from "../decision/automaton.js";

type Match = readonly [start: number, end: number];
/** A state that a match reaches, and the start of that match. */
type Reached = readonly [state: State, start: number];

/**
 * Of matches that overlap the first, and of these the longest, as UTF-16 indices. The whole text if ``visits`` are used
 * up, since a text is private if in doubt.
 */
export function findMatches(pattern: Automaton, text: string, visits: Visits): readonly Match[] {
  const found: Match[] = [];
  let best: Match | null = null;
  // In the order of their starts.
  let reached: readonly Reached[] = [];
  let before: Kind = "end";
  for (let at = 0; ;) {
    const point = text.codePointAt(at) ?? -1;
    const after = kindOf(point, false);
    const entered: readonly Reached[] = best === null ? [...reached, [pattern.first, at]] : reached;
    const step = follow(pattern, entered, [before, point, after], visits);
    if (visits.remaining < 0) return [[0, text.length]];
    if (step.matched !== null && step.matched <= (best?.[0] ?? step.matched)) best = [step.matched, at];
    const start: number = best?.[0] ?? Infinity;
    reached = step.reached.filter((each) => each[1] <= start);
    if (best !== null && (reached.length === 0 || point < 0)) {
      const [first, end]: Match = best;
      if (end > first) found.push(best);
      at = end > first ? end : end + 1;
      if (at > text.length) return found;
      before = kindOf(text.codePointAt(at - 1) ?? -1, false);
      [best, reached] = [null, []];
    } else if (point < 0) return found;
    else {
      at += point > 0xffff ? 2 : 1;
      before = after;
    }
  }
}

/** The states after a character, and the first start of a match that ends before it. */
function follow(
  pattern: Automaton,
  states: readonly Reached[],
  [before, point, after]: readonly [Kind, number, Kind],
  visits: Visits,
): { readonly reached: readonly Reached[]; readonly matched: number | null } {
  const step = ++pattern.steps;
  const reached: Reached[] = [];
  let matched: number | null = null;
  for (const [entered, start] of states) {
    const pending = [entered];
    for (let state = pending.pop(); state !== undefined; state = pending.pop()) {
      if (state.visited === step) continue;
      state.visited = step;
      visits.remaining--;
      if (state === pattern.match) matched ??= start;
      else if (state.accepts === null) {
        if (state.assertion === null || holds(state.assertion, before, after))
          for (const next of state.next) pending.push(next);
      } else if (state.accepts(point)) for (const next of state.next) reached.push([next, start]);
    }
  }
  return { reached, matched };
}

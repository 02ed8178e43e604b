// A pattern as a nondeterministic automaton (Thompson, 1968). A search follows all of its states at once, so its time
// is linear in the length of the text; a backtracking engine takes exponential time for patterns such as (a+)+$.
//
// A search remembers the sets of states that it has reached and the transitions between them (a lazy DFA), so most
// characters cost one look-up.

import type { Ranges } from "../grammar/ebnf.js";
import { BOUNDARY } from "./readings.js";

/** The maximum number of states of a pattern; a counted part has the states of all its copies. */
export const MAX_STATES = 1000;
/** The maximum number of visits of states in the searches of one request: about a second. */
const MAX_VISITS = 50_000_000;
/**
 * The maximum number of sets of states that a search remembers, and of states in each. Other sets are computed at each
 * character.
 */
const MAX_SETS = 1000;
const MAX_REMEMBERED = 100;

export type Assertion = "^" | "$" | "\\b" | "\\B";
/** Makes a pattern of its parts. */
export interface Builder<Part> {
  character(ranges: Ranges): Part;
  assertion(assertion: Assertion): Part;
  sequence(parts: readonly Part[]): Part;
  alternatives(parts: readonly Part[]): Part;
  /** ``most`` may be Infinity. */
  repeated(part: Part, least: number, most: number): Part;
}

/** Adds the states of a part of a pattern, at least one, in front of ``next``, and returns the first of them. */
export type Part = (next: State) => State;

/**
 * Reads a character that it accepts, or checks its assertion, or does neither; then it goes on to each state of
 * ``next``.
 */
export class State {
  /** The last step that visited it. */
  visited = 0;

  constructor(
    readonly id: number,
    public next: readonly State[],
    readonly accepts: ((point: number) => boolean) | null = null,
    readonly assertion: Assertion | null = null,
  ) {}
}

/**
 * The states after a character of the kind ``before``. ``following``: the remembered sets that it leads to, null if the
 * pattern is found.
 */
interface StateSet {
  readonly states: readonly State[];
  readonly before: Kind;
  readonly remembered: boolean;
  readonly following: Map<number, StateSet | null>;
}

/** The context of a position: an end of the text, a boundary between two parts, a word character, or another one. */
export type Kind = "end" | "boundary" | "word" | "other";

/** The number of visits that remain for the searches of one request. */
export class Visits {
  remaining = MAX_VISITS;
}

/** Makes the parts of one pattern. Throws ``tooLarge()`` for a pattern of more than ``MAX_STATES`` states. */
export class PartBuilder implements Builder<Part> {
  #size = 0;

  constructor(private readonly tooLarge: () => Error) {}

  character(ranges: Ranges): Part {
    const accepts = accepting(ranges);
    return (next) => this.#state([next], accepts);
  }

  assertion(assertion: Assertion): Part {
    return (next) => this.#state([next], null, assertion);
  }

  sequence(parts: readonly Part[]): Part {
    return (next) =>
      parts.reduceRight((following, part) => part(following), parts.length === 0 ? this.#state([next]) : next);
  }

  alternatives(parts: readonly Part[]): Part {
    const [only] = parts;
    return parts.length === 1 && only !== undefined ? only : (next) => this.#state(parts.map((part) => part(next)));
  }

  repeated(part: Part, least: number, most: number): Part {
    return (next) => {
      let first = most === 0 ? this.#state([next]) : next;
      let copies = least;
      if (most === Infinity) {
        const loop = this.#state([]);
        const body = part(loop);
        loop.next = [body, next];
        first = least === 0 ? loop : body;
        copies--;
      } else for (let index = least; index < most; index++) first = this.#state([part(first), next]);
      while (copies-- > 0) first = part(first);
      return first;
    };
  }

  #state(next: readonly State[], accepts: State["accepts"] = null, assertion: Assertion | null = null): State {
    if (++this.#size > MAX_STATES) throw this.tooLarge();
    return new State(this.#size, next, accepts, assertion);
  }
}

export class Automaton {
  readonly match = new State(0, []);
  readonly first: State;
  /** The steps of all searches, of which each visits a state once. */
  steps = 0;

  constructor(pattern: Part) {
    this.first = pattern(this.match);
  }

  /**
   * Whether the pattern matches anywhere in the text; true if ``visits`` are used up, since a text is private if in
   * doubt. With ``boundaries``, a match may continue over a ``BOUNDARY``, and beside it every assertion holds.
   */
  test(text: string, boundaries = false, visits = new Visits()): boolean {
    const sets = new Map<string, StateSet>();
    let set = remembered(sets, [], "end");
    for (let at = 0; ;) {
      const point = text.codePointAt(at) ?? -1;
      let following = set.following.get(point);
      if (following === undefined) {
        const after = kindOf(point, boundaries);
        const states = this.#following(set, point, after, visits);
        following = states === null ? null : remembered(sets, states, after);
        if (following?.remembered !== false) set.following.set(point, following);
      }
      if (following === null || visits.remaining < 0) return true;
      if (point < 0) return false;
      set = following;
      at += point > 0xffff ? 2 : 1;
    }
  }

  /** The states after a character; null if the pattern is found before it. */
  #following({ states, before }: StateSet, point: number, after: Kind, visits: Visits): readonly State[] | null {
    const step = ++this.steps;
    const pending = [this.first, ...states];
    const reached: State[] = [];
    for (let state = pending.pop(); state !== undefined; state = pending.pop()) {
      if (state.visited === step) continue;
      state.visited = step;
      visits.remaining--;
      if (state.accepts === null) {
        if (state.assertion === null || holds(state.assertion, before, after))
          for (const next of state.next) pending.push(next);
      } else if (state.accepts(point)) for (const next of state.next) reached.push(next);
    }
    if (this.match.visited === step) return null;
    if (after === "boundary") return before === "boundary" ? [] : states;
    return reached;
  }
}

function remembered(sets: Map<string, StateSet>, states: readonly State[], before: Kind): StateSet {
  if (sets.size >= MAX_SETS || states.length > MAX_REMEMBERED)
    return { states, before, remembered: false, following: new Map() };
  const unique = [...new Set(states)].sort((left, right) => left.id - right.id);
  const key = `${before} ${unique.map(({ id }) => id).join()}`;
  const set = sets.get(key) ?? {
    states: unique,
    before,
    remembered: true,
    following: new Map<number, StateSet | null>(),
  };
  sets.set(key, set);
  return set;
}

export function holds(assertion: Assertion, before: Kind, after: Kind): boolean {
  if (before === "boundary" || after === "boundary") return true;
  if (assertion === "^") return before === "end";
  if (assertion === "$") return after === "end";
  return (before === "word") === (after === "word") ? assertion === "\\B" : assertion === "\\b";
}

export function kindOf(point: number, boundaries: boolean): Kind {
  if (point < 0) return "end";
  const character = String.fromCodePoint(point);
  if (boundaries && character === BOUNDARY) return "boundary";
  return /\w/.test(character) ? "word" : "other";
}

/** Whether a code point is in the ranges. All copies of a part share this function, so it remembers its last answer. */
function accepting(ranges: Ranges): (point: number) => boolean {
  let last = -1;
  let answer = false;
  return (point) => {
    if (point === last) return answer;
    let [low, high] = [0, ranges.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((ranges[middle]?.[1] ?? 0) < point) low = middle + 1;
      else high = middle;
    }
    last = point;
    return (answer = (ranges[low]?.[0] ?? Infinity) <= point);
  };
}

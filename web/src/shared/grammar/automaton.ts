// Writes regular languages as grammar rules: one rule for each state of a minimal deterministic automaton. Such rules
// have only one way to read a text, because xgrammar 0.1.27 joins alternatives that begin or end alike wrongly.

import { RequestError } from "../../errors.js";
import type { Ranges, RuleBook } from "./ebnf.js";
import { ANY, alternatives, characters, intersect, literal, single, subtract, union } from "./ebnf.js";

export type Language =
  | { readonly kind: "set"; readonly set: Ranges }
  | { readonly kind: "sequence" | "choice"; readonly parts: readonly Language[] }
  | { readonly kind: "repeat"; readonly of: Language; readonly min: number; readonly max: number }
  | Multiple;

/**
 * The decimals of at most ``places`` digits behind the point that are multiples of ``whole`` / 10^places. Zeros may
 * lead, and nothing at all counts as 0: it belongs into an intersection with a language of numbers.
 */
interface Multiple {
  readonly kind: "multiple";
  readonly whole: number;
  readonly places: number;
}

/** The texts that are in each of the languages. */
export interface Intersection {
  readonly kind: "intersection";
  readonly parts: readonly Language[];
}

/**
 * What of an answer the texts of a language are: all of it, a JSON value, or a JSON string after its opening quote.
 */
export type Context = "answer" | "value" | "string";

interface Length {
  readonly min: number;
  readonly max: number;
}

interface State {
  readonly accepting: boolean;
  /** The next state of each atom; -1 for none. */
  readonly next: readonly number[];
}

/**
 * A lookahead for what follows a JSON value or a name. Without it, xgrammar must try each token that ends a value against
 * everything that may follow.
 */
export const FOLLOWED = "(= [ \\n\\t]* [,}\\]:])";
const MOST_STATES = 1500;
const MOST_ENDINGS = 200;
// An escaped character of a JSON string has at most six bytes.
const LONGEST_CHARACTER = 6;
const JSON_ESCAPED: Ranges = [
  [0, 0x1f],
  [0x22, 0x22],
  [0x5c, 0x5c],
];

export function literalLanguage(text: string): Language {
  return {
    kind: "sequence",
    parts: Array.from(text, (character): Language => ({ kind: "set", set: [[codeOf(character), codeOf(character)]] })),
  };
}

/**
 * Adds the rules of ``language`` to ``book``, and the shortest ends of its texts to the book's endings; returns the
 * name of the first rule, or null if the language has no text of that length. In the context
 * "string" the texts end with the closing quote. Throws RequestError if the automaton is
 * too large; ``where`` names it.
 */
export function languageRule(
  book: RuleBook,
  language: Language | Intersection,
  context: Context,
  where: string,
  length: Length = { min: 0, max: Infinity },
): string | null {
  const automaton = new Nfa(where);
  const ends = (language.kind === "intersection" ? language.parts : [language]).map((part) => automaton.add(part));
  const atoms = automaton.atoms();
  const all = ends
    .map(([start, end]) => minimal(useful(automaton.states(start, end, atoms))))
    .reduce((left, right) => intersection(left, right, where));
  const states = minimal(useful(ofLength(all, length, where)));
  if (states.length === 0) return null;
  return writeRules(book, states, atoms, context, where);
}

/** Thompson's construction. */
class Nfa {
  readonly #epsilon: number[][] = [];
  readonly #edges: { readonly set: Ranges; readonly to: number }[][] = [];

  constructor(private readonly where: string) {}

  /** The start and the end of a part for the language. */
  add(language: Language): [number, number] {
    switch (language.kind) {
      case "set": {
        const [start, end] = [this.state(), this.state()];
        this.#edges[start]?.push({ set: language.set, to: end });
        return [start, end];
      }
      case "sequence": {
        const start = this.state();
        let end = start;
        for (const part of language.parts) {
          const [first, last] = this.add(part);
          this.#epsilon[end]?.push(first);
          end = last;
        }
        return [start, end];
      }
      case "choice": {
        const [start, end] = [this.state(), this.state()];
        for (const part of language.parts) {
          const [first, last] = this.add(part);
          this.#epsilon[start]?.push(first);
          this.#epsilon[last]?.push(end);
        }
        return [start, end];
      }
      case "repeat": {
        const start = this.state();
        let end = start;
        const stops: number[] = [];
        const copies = language.max === Infinity ? Math.max(language.min, 1) : language.max;
        for (let index = 0; index < copies; index++) {
          if (index >= language.min) stops.push(end);
          const [first, last] = this.add(language.of);
          this.#epsilon[end]?.push(first);
          if (language.max === Infinity && index === copies - 1) this.#epsilon[last]?.push(first);
          end = last;
        }
        const final = this.state();
        for (const stop of [...stops, end]) this.#epsilon[stop]?.push(final);
        return [start, final];
      }
      case "multiple":
        return this.multiple(language);
      default:
        return language satisfies never;
    }
  }

  /** A state is the number of digits behind the point, and the remainder of all digits by ``whole``. */
  private multiple({ whole, places }: Multiple): [number, number] {
    const [start, end] = [this.state(), this.state()];
    const layers = Array.from({ length: places + 1 }, () => Array.from({ length: whole }, () => this.state()));
    const first = layers[0]?.[0] ?? start;
    this.#epsilon[start]?.push(first);
    this.#edges[start]?.push({ set: single("-"), to: first });
    layers.forEach((layer, count) => {
      layer.forEach((state, remainder) => {
        if ((remainder * 10 ** (places - count)) % whole === 0) this.#epsilon[state]?.push(end);
        let behind = state;
        if (count === 0 && places > 0) {
          behind = this.state();
          this.#edges[state]?.push({ set: single("."), to: behind });
        }
        for (let digit = 0; digit < 10; digit++) {
          const [set, to] = [single(String(digit)), (10 * remainder + digit) % whole];
          if (count === 0) this.#edges[state]?.push({ set, to: layer[to] ?? end });
          const next = layers[count + 1]?.[to];
          if (next !== undefined) this.#edges[behind]?.push({ set, to: next });
        }
      });
    });
    return [start, end];
  }

  /** Ranges of characters that no set separates. */
  atoms(): Ranges {
    const starts = new Set([0, 0x80, 0xd800, 0xe000]);
    for (const edges of this.#edges)
      for (const { set } of edges) for (const [first, last] of set) starts.add(first).add(last + 1);
    const sorted = [...starts].filter((start) => start <= 0x10ffff).sort((a, b) => a - b);
    const ranges = sorted.map((start, index): [number, number] => [start, (sorted[index + 1] ?? 0x110000) - 1]);
    return ranges.filter(([start]) => intersect(ANY, [[start, start]]).length > 0);
  }

  /** The subset construction; state 0 is the start. */
  states(start: number, end: number, atoms: Ranges): State[] {
    const ids = new Map<string, number>();
    const sets: number[][] = [];
    const idOf = (set: Set<number>): number => {
      const members = this.closure(set);
      const key = members.join();
      const known = ids.get(key);
      if (known !== undefined) return known;
      if (sets.length >= MOST_STATES) throw tooLarge(this.where);
      ids.set(key, sets.length);
      sets.push(members);
      return sets.length - 1;
    };
    idOf(new Set([start]));
    const states: State[] = [];
    // The list grows during the iteration.
    for (const members of sets) {
      const targets = atoms.map(() => new Set<number>());
      for (const member of members) {
        for (const { set, to } of this.#edges[member] ?? []) {
          atoms.forEach(([first], index) => {
            if (set.some(([low, high]) => first >= low && first <= high)) targets[index]?.add(to);
          });
        }
      }
      states.push({
        accepting: members.includes(end),
        next: targets.map((target) => (target.size === 0 ? -1 : idOf(target))),
      });
    }
    return states;
  }

  private closure(set: Set<number>): number[] {
    const all = new Set(set);
    for (const state of all) for (const to of this.#epsilon[state] ?? []) all.add(to);
    return [...all].sort((a, b) => a - b);
  }

  private state(): number {
    if (this.#edges.length > 4 * MOST_STATES) throw tooLarge(this.where);
    this.#epsilon.push([]);
    return this.#edges.push([]) - 1;
  }
}

/** The product construction: a state is a pair of states, one of each automaton. */
function intersection(left: readonly State[], right: readonly State[], where: string): State[] {
  const pairs: (readonly [number, number])[] = [];
  const ids = new Map<string, number>();
  const idOf = (first: number, second: number): number => {
    if (first < 0 || second < 0) return -1;
    const key = `${first} ${second}`;
    const known = ids.get(key);
    if (known !== undefined) return known;
    if (pairs.length >= MOST_STATES) throw tooLarge(where);
    ids.set(key, pairs.length);
    return pairs.push([first, second]) - 1;
  };
  idOf(0, 0);
  const states: State[] = [];
  // The list grows during the iteration.
  for (const [first, second] of pairs) {
    const [a, b] = [left[first], right[second]];
    states.push({
      accepting: a?.accepting === true && b?.accepting === true,
      next: (a?.next ?? []).map((to, index) => idOf(to, b?.next[index] ?? -1)),
    });
  }
  return states;
}

/** The texts of a length in characters. */
function ofLength(states: readonly State[], { min, max }: Length, where: string): State[] {
  if (min === 0 && max === Infinity) return [...states];
  const most = max === Infinity ? min : max + 1;
  if (states.length * (most + 1) > MOST_STATES) throw tooLarge(where);
  // State (q, n) for n characters read, n up to the minimum, or one past the maximum.
  return Array.from({ length: most + 1 }, (_, count) => count).flatMap((count) =>
    states.map(({ accepting, next }) => ({
      accepting: accepting && count >= min && count <= max,
      next: next.map((to) => (to < 0 ? -1 : Math.min(count + 1, most) * states.length + to)),
    })),
  );
}

/** The states that lead to the end of a text; none if the start does not. */
function useful(states: readonly State[]): State[] {
  const distance = distances(states);
  const reached = new Set<number>((distance[0] ?? Infinity) === Infinity ? [] : [0]);
  for (const id of reached)
    for (const to of states[id]?.next ?? []) if (to >= 0 && distance[to] !== Infinity) reached.add(to);
  const renamed = new Map([...reached].map((id, index) => [id, index]));
  return [...reached].map((id) => ({
    accepting: states[id]?.accepting === true,
    next: (states[id]?.next ?? []).map((to) => renamed.get(to) ?? -1),
  }));
}

/** The number of characters from each state to the end of a text. */
function distances(states: readonly State[]): number[] {
  const distance = states.map(({ accepting }) => (accepting ? 0 : Infinity));
  for (let changed = true; changed;) {
    changed = false;
    for (let id = states.length - 1; id >= 0; id--) {
      for (const to of states[id]?.next ?? []) {
        const through = 1 + (to < 0 ? Infinity : (distance[to] ?? Infinity));
        if (through < (distance[id] ?? 0)) {
          distance[id] = through;
          changed = true;
        }
      }
    }
  }
  return distance;
}

/** Moore's minimization; the start stays state 0. */
function minimal(states: readonly State[]): State[] {
  let block: number[] = states.map(({ accepting }) => (accepting ? 1 : 0));
  for (let count = new Set(block).size; ;) {
    const ids = new Map<string, number>();
    const refined = states.map(({ next }, id) => {
      const key = `${block[id] ?? 0}:${next.map((to) => (to < 0 ? -1 : (block[to] ?? 0))).join()}`;
      const known = ids.get(key) ?? ids.size;
      ids.set(key, known);
      return known;
    });
    block = refined;
    if (ids.size === count) break;
    count = ids.size;
  }
  const first = new Map<number, State>();
  states.forEach((state, id) => first.set(block[id] ?? 0, first.get(block[id] ?? 0) ?? state));
  return [...first]
    .sort(([a], [b]) => a - b)
    .map(([, { accepting, next }]) => ({ accepting, next: next.map((to) => (to < 0 ? -1 : (block[to] ?? -1))) }));
}

function writeRules(book: RuleBook, states: readonly State[], atoms: Ranges, context: Context, where: string): string {
  const names = states.map(() => book.reserve("state"));
  const end = context === "string" ? literal('"') : '""';
  const written = (set: Ranges): readonly string[] => encode(set, context, where);
  states.forEach(({ accepting, next }, id) => {
    const sets = new Map<number, Ranges>();
    next.forEach((to, index) => {
      const atom = atoms[index];
      if (to >= 0 && atom !== undefined) sets.set(to, union([...(sets.get(to) ?? []), atom]));
    });
    const own = sets.get(id);
    sets.delete(id);
    const onward = [...sets].map(([to, set]) => `${alternatives(written(set))} ${names[to] ?? ""}`);
    const loop = own === undefined ? "" : `${alternatives(written(own))}* `;
    const ways = [...(accepting ? [end] : []), ...onward];
    book.define(names[id] ?? "", `(${loop}${alternatives(ways)})${context === "answer" ? "" : ` ${FOLLOWED}`}`);
  });
  addEndings(book, states, atoms, context);
  return names[0] ?? "";
}

/** Adds the shortest text from each of the first states to an end. */
function addEndings(book: RuleBook, states: readonly State[], atoms: Ranges, context: Context): void {
  const distance = distances(states);
  book.longestEnd = Math.max(book.longestEnd, LONGEST_CHARACTER * Math.max(...distance));
  for (let id = 0; id < states.length && book.endings.size < MOST_ENDINGS; id++) {
    let text = "";
    for (let at = id; (distance[at] ?? 0) > 0;) {
      const next = states[at]?.next ?? [];
      const nearer = next.flatMap((to, index) => (to >= 0 && distance[to] === (distance[at] ?? 0) - 1 ? [index] : []));
      // Letters and digits read better than what comes first in ASCII.
      const best =
        nearer.find((index) => /[a-z0-9]/i.test(String.fromCodePoint(atoms[index]?.[0] ?? 0))) ?? nearer[0] ?? 0;
      const character = String.fromCodePoint(atoms[best]?.[0] ?? 0);
      text += context === "string" ? JSON.stringify(character).slice(1, -1) : character;
      at = next[best] ?? 0;
    }
    if (text !== "") book.endings.add(text);
  }
}

function encode(set: Ranges, context: Context, where: string): readonly string[] {
  const plain = characters(context === "string" ? subtract(set, JSON_ESCAPED) : set);
  if (plain === null) {
    throw new RequestError(
      `${where}: distinguishes too many non-ASCII characters; list at most 2000 of them, or allow all of them`,
    );
  }
  const escaped: string[] = [];
  if (context === "string") {
    for (const [first, last] of intersect(set, JSON_ESCAPED)) {
      for (let code = first; code <= last; code++)
        escaped.push(literal(JSON.stringify(String.fromCodePoint(code)).slice(1, -1)));
    }
  }
  return [...plain, ...escaped];
}

function codeOf(character: string): number {
  return character.codePointAt(0) ?? 0;
}

function tooLarge(where: string): RequestError {
  return new RequestError(`${where}: is too large for a grammar; use smaller counts and fewer alternatives`);
}

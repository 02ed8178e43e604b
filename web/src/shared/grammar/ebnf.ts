// EBNF as xgrammar reads it: a book of rules, and the spelling of literals and of character classes.

import { RequestError } from "../../errors.js";

/** Inclusive code point ranges, ascending and apart. */
export type Ranges = readonly (readonly [number, number])[];

/** The characters that UTF-8 can encode: surrogates are not characters. */
export const ANY: Ranges = [
  [0, 0xd7ff],
  [0xe000, 0x10ffff],
];
/** The characters of which xgrammar's classes can hold only all or none. */
export const PAST_ASCII: Ranges = subtract(ANY, [[0, 0x7f]]);

// Characters past ASCII that are written out one by one.
const MOST_SINGLE = 2000;
export const STRING_LITERAL = /"((?:[^"\\]|\\.)*)"/g;
// A part of a rule's body.
const ITEM = /"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|[A-Za-z_]\w*|[()|*+?]|\{\d+(?:,\d*)?\}/g;
// Past this, compiling takes seconds.
const MAX_SIZE = 400_000;
const MIN_NAMED = 64;

/** Rules by name; ``root`` is where a text begins. */
export class RuleBook {
  /** Texts that may complete an answer, for the search of completions. */
  readonly endings = new Set<string>();
  /** Whether white space may stand between the parts of a value. */
  spaced = true;
  /** The most bytes from a state of an automaton to its end. */
  longestEnd = 0;
  /** Bytes that choices may add to the shortest completion, each once, without those of the automata. */
  demanded = 0;
  readonly #rules = new Map<string, string>();
  #size = 0;

  /** ``joins``: whether the compiler is xgrammar 0.1, which joins alternatives wrongly that are not rules by themselves. */
  constructor(readonly joins: boolean) {}

  /** A name that no rule has yet. */
  reserve(hint: string): string {
    const name = `${hint}_${this.#rules.size}`;
    this.#rules.set(name, "");
    return name;
  }

  define(name: string, body: string): string {
    this.#size += body.length;
    if (this.#size > MAX_SIZE)
      throw new RequestError("The grammar is too large; make the schema smaller, or its optional parts fewer");
    this.#rules.set(name, body);
    return name;
  }

  add(hint: string, body: string): string {
    return this.define(this.reserve(hint), body);
  }

  /**
   * An expression for ``body`` that is short, because it is written several times: with each depth at which this is so,
   * the size of a grammar would double.
   */
  named(hint: string, body: string): string {
    return body.length < MIN_NAMED ? body : this.add(hint, body);
  }

  /** The name of a shared rule, which the first call adds. */
  once(name: string, body: () => string): string {
    if (!this.#rules.has(name)) {
      this.#rules.set(name, "");
      this.define(name, body());
    }
    return name;
  }

  demand(numBytes: number): void {
    this.demanded += numBytes;
  }

  /**
   * The grammar whose texts are those of ``expression``. Throws RequestError if every text of the expression is
   * infinite.
   */
  rooted(expression: string): string {
    if (!this.ends(expression)) {
      throw new RequestError(
        "The JSON schema allows no finite value: a required part contains itself; make that part optional",
      );
    }
    const rules = [...this.#rules].map(([name, body]) => `${name} ::= ${body}\n`);
    return `root ::= ${expression}\n${rules.join("")}`;
  }

  /** Whether any text of the expression is finite. Finds the rules with a finite text until no more are found. */
  private ends(expression: string): boolean {
    const bodies = [...this.#rules].map(([name, body]) => [name, itemsOf(body)] as const);
    const ending = new Set<string>();
    for (let count = -1; count < ending.size;) {
      count = ending.size;
      // Most rules name earlier rules.
      for (const [name, items] of bodies)
        if (!ending.has(name) && new Reader(items, ending).alternatives()) ending.add(name);
    }
    return new Reader(itemsOf(expression), ending).alternatives();
  }
}

/** Whether an expression has a finite text, given the rules that have one. */
class Reader {
  #at = 0;

  constructor(
    private readonly items: readonly string[],
    private readonly ending: ReadonlySet<string>,
  ) {}

  alternatives(): boolean {
    let ends = this.sequence();
    while (this.peek() === "|") {
      this.#at++;
      ends = this.sequence() || ends;
    }
    return ends;
  }

  private sequence(): boolean {
    let ends = true;
    while (!["", "|", ")"].includes(this.peek())) ends = this.item() && ends;
    return ends;
  }

  private item(): boolean {
    const item = this.peek();
    this.#at++;
    let ends = /^["[]/.test(item) || this.ending.has(item);
    if (item === "(") {
      ends = this.alternatives();
      this.#at++;
    }
    if (!/^[*+?{]/.test(this.peek())) return ends;
    const repetition = this.items[this.#at++] ?? "";
    return ends || /^([*?]|\{0)/.test(repetition);
  }

  private peek(): string {
    return this.items[this.#at] ?? "";
  }
}

function itemsOf(body: string): readonly string[] {
  return body.match(ITEM) ?? [];
}

/** The maximum number of bytes of the string literals in some EBNF. */
export function literalBytes(body: string): number {
  const bytesOf = (escape: string): string => (Number.parseInt(escape.slice(2), 16) < 0x80 ? "x" : "xxxx");
  return [...body.matchAll(STRING_LITERAL)].reduce(
    (sum, [, inner = ""]) => sum + utf8Length(inner.replace(/\\U.{8}/g, bytesOf)),
    0,
  );
}

/** The bytes of a text in UTF-8. QuickJS has no TextEncoder. */
export function utf8Length(text: string): number {
  let length = 0;
  for (const character of text) {
    const code = character.codePointAt(0) ?? 0;
    length += code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
  }
  return length;
}

export function literal(text: string): string {
  return `"${Array.from(text, (character) => spell(character.codePointAt(0) ?? 0)).join("")}"`;
}

/** A class of ASCII characters. */
export function charClass(ranges: Ranges): string {
  const parts = ranges.map(([first, last]) => (first === last ? spell(first) : `${spell(first)}-${spell(last)}`));
  return `[${parts.join("")}]`;
}

/**
 * Alternatives that together are a set of characters. xgrammar 0.1.27 reads ranges past ASCII as bytes, so those are
 * all characters past ASCII, or each by itself. Null if they are too many.
 */
export function characters(set: Ranges): readonly string[] | null {
  const ascii = intersect(set, [[0, 0x7f]]);
  const past = subtract(set, [[0, 0x7f]]);
  const parts = ascii.length === 0 ? [] : [charClass(ascii)];
  if (past.length === 0) return parts;
  if (subtract(PAST_ASCII, past).length === 0) return [...parts, "[^\\U00000000-\\U0000007f]"];
  if (past.reduce((sum, [first, last]) => sum + last - first + 1, 0) > MOST_SINGLE) return null;
  for (const [first, last] of past)
    for (let code = first; code <= last; code++) parts.push(literal(String.fromCodePoint(code)));
  return parts;
}

export function alternatives(parts: readonly string[]): string {
  return parts.length === 1 ? (parts[0] ?? "") : `(${parts.join(" | ")})`;
}

/** ``expression`` from ``min`` to ``max`` times. */
export function repeat(expression: string, min: number, max: number): string {
  if (max === 0) return '""';
  if (min === 1 && max === 1) return expression;
  if (max === Infinity) return `(${expression})${min === 0 ? "*" : `{${min},}`}`;
  return `(${expression})${min === 0 && max === 1 ? "?" : `{${min},${max}}`}`;
}

export function union(ranges: Ranges): Ranges {
  const merged: [number, number][] = [];
  for (const [first, last] of [...ranges].sort((a, b) => a[0] - b[0])) {
    const previous = merged.at(-1);
    if (previous !== undefined && first <= previous[1] + 1) previous[1] = Math.max(previous[1], last);
    else merged.push([first, last]);
  }
  return merged;
}

export function intersect(left: Ranges, right: Ranges): Ranges {
  return union(
    left
      .flatMap(([a, b]) => right.map(([c, d]): [number, number] => [Math.max(a, c), Math.min(b, d)]))
      .filter(([first, last]) => first <= last),
  );
}

export function subtract(from: Ranges, taken: Ranges): Ranges {
  const inverse: [number, number][] = [];
  let next = 0;
  for (const [first, last] of union(taken)) {
    if (first > next) inverse.push([next, first - 1]);
    next = last + 1;
  }
  inverse.push([next, 0x10ffff]);
  return intersect(from, inverse);
}

export function single(character: string): Ranges {
  const code = character.codePointAt(0) ?? 0;
  return [[code, code]];
}

function spell(code: number): string {
  const character = String.fromCodePoint(code);
  return /[A-Za-z0-9_ ]/.test(character) ? character : `\\U${code.toString(16).padStart(8, "0")}`;
}

// Parses a regular expression in ECMAScript's syntax into a language. Constructs beyond regular languages (lookaround,
// back references, word boundaries) is refused.

import { RequestError, messageOf } from "../../errors.js";
import type { Language } from "./automaton.js";
import type { Ranges } from "./ebnf.js";
import { ANY, intersect, single, subtract, union } from "./ebnf.js";

const DIGIT: Ranges = [[0x30, 0x39]];
const WORD: Ranges = [
  [0x30, 0x39],
  [0x41, 0x5a],
  [0x5f, 0x5f],
  [0x61, 0x7a],
];
// White space and line ends past ASCII are left out, because a class here has all characters past ASCII, or few of
// them.
const SPACE: Ranges = [
  [0x09, 0x0d],
  [0x20, 0x20],
];
const LINE_ENDS: Ranges = [
  [0x0a, 0x0a],
  [0x0d, 0x0d],
];
const CLASSES: Readonly<Record<string, Ranges>> = {
  d: DIGIT,
  D: subtract(ANY, DIGIT),
  w: WORD,
  W: subtract(ANY, WORD),
  s: SPACE,
  S: subtract(ANY, SPACE),
};
const CONTROLS: Readonly<Record<string, string>> = { t: "\t", n: "\n", r: "\r", f: "\f", v: "\v", "0": "\0" };
const MAX_DEPTH = 100;
// An escape, a class, or the parenthesis of a group that captures.
const PARTS = /\\.|\[(?:\\.|[^\]\\])*\]|\((?!\?)/gsu;
const NOTHING: Language = { kind: "sequence", parts: [] };
const ANYTHING: Language = { kind: "repeat", of: { kind: "set", set: ANY }, min: 0, max: Infinity };

/**
 * The texts that ``pattern`` matches completely, or with ``search``, as in JSON Schema, those in which it matches
 * somewhere. Throws RequestError for a pattern that is wrong or no regular language; ``where`` names it.
 */
export function parseRegex(pattern: string, where: string, search = false): Language {
  return new RegexParser(pattern, where, search).parse();
}

class RegexParser {
  readonly #characters: readonly string[];
  #at = 0;
  #depth = 0;

  constructor(
    private readonly pattern: string,
    private readonly where: string,
    private readonly search: boolean,
  ) {
    this.#characters = Array.from(pattern);
  }

  parse(): Language {
    // QuickJS allows 255 groups that capture.
    const pattern = this.pattern.replace(PARTS, (part) => (part === "(" ? "(?:" : part));
    try {
      new RegExp(pattern, "u");
    } catch {
      try {
        // Escapes such as \- are wrong with the flag only.
        new RegExp(pattern);
      } catch (error) {
        throw this.refusal(`is not a regular expression (${messageOf(error)})`);
      }
    }
    const expression = this.alternation(true);
    if (this.#at < this.#characters.length) throw this.refusal("has an unmatched parenthesis");
    return expression;
  }

  private alternation(top: boolean): Language {
    if (++this.#depth > MAX_DEPTH) throw this.refusal("is nested too deep");
    const parts = [this.sequence(top)];
    while (this.take("|")) parts.push(this.sequence(top));
    this.#depth--;
    return { kind: "choice", parts };
  }

  private sequence(top: boolean): Language {
    const start = this.take("^");
    if (start && !top) throw this.refusal("has an anchor inside a group; put ^ and $ at the ends");
    const parts: Language[] = this.search && top && !start ? [ANYTHING] : [];
    let end = false;
    while (this.#at < this.#characters.length && !["|", ")"].includes(this.peek())) {
      if (end) throw this.refusal("goes on after $");
      if (this.peek() === "$" && top) end = this.take("$");
      else parts.push(this.quantified());
    }
    return { kind: "sequence", parts: this.search && top && !end ? [...parts, ANYTHING] : parts };
  }

  private quantified(): Language {
    const of = this.atom();
    const [min, max] = this.quantifier();
    if (min === 1 && max === 1) return of;
    // A lazy quantifier matches the same texts.
    this.take("?");
    return max === 0 ? NOTHING : { kind: "repeat", of, min, max };
  }

  private quantifier(): [number, number] {
    if (this.take("*")) return [0, Infinity];
    if (this.take("+")) return [1, Infinity];
    if (this.take("?")) return [0, 1];
    const braces = /^\{(\d+)(,(\d*))?\}/.exec(this.rest());
    if (braces === null) return [1, 1];
    this.#at += braces[0].length;
    const min = Number(braces[1]);
    return [min, braces[2] === undefined ? min : braces[3] === "" ? Infinity : Number(braces[3])];
  }

  private atom(): Language {
    const character = this.next();
    if (character === "(") {
      if (/^\?(=|!|<=|<!)/.test(this.rest())) throw this.refusal("uses lookaround, which grammars do not support");
      const named = /^\?(:|<[\p{L}_$][\p{L}\p{N}_$]*>)/u.exec(this.rest());
      if (named !== null) this.#at += Array.from(named[0]).length;
      else if (this.peek() === "?") throw this.refusal("has a kind of group that is not known");
      const inner = this.alternation(false);
      if (!this.take(")")) throw this.refusal("has a group without an end");
      return inner;
    }
    if (character === "[") return this.set(this.bracket());
    if (character === ".") return this.set(subtract(ANY, LINE_ENDS));
    if (character === "\\") return this.set(this.escape(false));
    if (character === "^" || character === "$")
      throw this.refusal("has an anchor in the middle; put ^ and $ at the ends");
    return this.set(single(character));
  }

  private bracket(): Ranges {
    const negated = this.take("^");
    const parts: (readonly [number, number])[] = [];
    while (!this.take("]")) {
      const low = this.member();
      if (
        this.peek() === "-" &&
        this.#characters[this.#at + 1] !== "]" &&
        low.length === 1 &&
        low[0]?.[0] === low[0]?.[1]
      ) {
        this.#at++;
        const high = this.member();
        if (high.length !== 1) throw this.refusal("has a range that ends in a class");
        parts.push([low[0]?.[0] ?? 0, high[0]?.[1] ?? 0]);
      } else parts.push(...low);
    }
    return negated ? subtract(ANY, parts) : intersect(parts, ANY);
  }

  private member(): Ranges {
    const character = this.next();
    return character === "\\" ? this.escape(true) : single(character);
  }

  private escape(inBracket: boolean): Ranges {
    const character = this.next();
    const known = CLASSES[character];
    if (known !== undefined) return known;
    if (inBracket && character === "b") return single("\b");
    if (character !== "0" || !/^\d/.test(this.rest())) {
      const control = CONTROLS[character];
      if (control !== undefined) return single(control);
    }
    if (character === "x" || character === "u") {
      const code = (character === "x" ? /^([0-9a-fA-F]{2})/ : /^([0-9a-fA-F]{4})|^\{([0-9a-fA-F]+)\}/).exec(
        this.rest(),
      );
      if (code === null) throw this.refusal(`has an unfinished \\${character}`);
      this.#at += code[0].length;
      const point = Number.parseInt(code[1] ?? code[2] ?? "", 16);
      return [[point, point]];
    }
    if (/[A-Za-z0-9]/.test(character)) throw this.refusal(`has \\${character}, which is not supported here`);
    return single(character);
  }

  private set(ranges: Ranges): Language {
    const set = intersect(union(ranges), ANY);
    if (set.length === 0) throw this.refusal("has a class without a character");
    return { kind: "set", set };
  }

  private peek(): string {
    return this.#characters[this.#at] ?? "";
  }

  private next(): string {
    if (this.#at >= this.#characters.length) throw this.refusal("ends too early");
    return this.#characters[this.#at++] ?? "";
  }

  private take(character: string): boolean {
    if (this.peek() !== character) return false;
    this.#at++;
    return true;
  }

  private rest(): string {
    return this.#characters.slice(this.#at).join("");
  }

  private refusal(problem: string): RequestError {
    return new RequestError(`${this.where}: the pattern ${JSON.stringify(this.pattern)} ${problem}`, {
      pattern: this.pattern,
    });
  }
}

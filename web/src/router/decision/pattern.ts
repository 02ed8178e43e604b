// Patterns of private texts: the regular expressions that Python's re and JavaScript's RegExp read alike. A pattern flows in, a RegExp flows out.
//
// Characters, . [...] (...) (?:...) | and * + ? {n} {n,} {n,m} with their lazy forms, ^ and $ (the ends of the text), \b \B \d \D \w \W \s \S in ASCII's
// meaning, \t \n \r \f \v \xHH \uHHHH, and a backslash before any sign. All else (lookaround, back references, named groups, flags) is refused.

import type { Ranges } from "../../grammar/ebnf.js";
import { ANY, single, subtract, union } from "../../grammar/ebnf.js";
import { BOUNDARY } from "./readings.js";

const MAX_CHARACTERS = 1000;
/** How often a part may be repeated, the counts of all groups around it multiplied: engines copy it so many times. */
const MAX_COPIES = 1000;
const MAX_DEPTH = 50;
/** Ranges are widened to both cases for the scripts up to here: Latin, Greek, Cyrillic. */
const LAST_CASED = 0x52f;

const CLASSES: Readonly<Record<string, Ranges>> = {
  d: [[0x30, 0x39]],
  w: [
    [0x30, 0x39],
    [0x41, 0x5a],
    [0x5f, 0x5f],
    [0x61, 0x7a],
  ],
  s: [
    [0x09, 0x0d],
    [0x20, 0x20],
  ],
};
const CONTROLS: Readonly<Record<string, string>> = { t: "\t", n: "\n", r: "\r", f: "\f", v: "\v" };
const CODES: Readonly<Record<string, RegExp>> = { x: /^[0-9a-fA-F]{2}/, u: /^[0-9a-fA-F]{4}/ };
const COUNTS = /^\{([0-9]{1,4})(,([0-9]{1,4})?)?\}/;
const ASSERTIONS = { "^": "^", $: "$", "\\b": "\\b", "\\B": "\\B" };

/**
 * The pattern, ready to search with. With ``boundaries``, a match may go on over a boundary between parts, and there every assertion holds: ^, $, \b and
 * \B. Throws Error that says what is outside the subset.
 */
export function compilePattern(pattern: string, ignoreCase: boolean, boundaries = false): RegExp {
  return new RegExp(new Parser(pattern, ignoreCase, boundaries).parse(), "u");
}

/** Throws Error for a pattern by which every text would be private. */
export function refuseEmptyMatch(pattern: string, compiled: RegExp): void {
  if (compiled.test("")) throw new Error(`the pattern ${JSON.stringify(pattern)} matches the empty text, and so every text`);
}

/** Writes every character as its code point, so that nothing is left for an engine to read in its own way. */
class Parser {
  readonly #characters: readonly string[];
  #at = 0;
  #depth = 0;
  #copies = 1;

  constructor(
    pattern: string,
    private readonly ignoreCase: boolean,
    private readonly boundaries: boolean,
  ) {
    this.#characters = Array.from(pattern);
  }

  parse(): string {
    if (this.#characters.length > MAX_CHARACTERS) throw this.refusal(`has more than ${MAX_CHARACTERS} characters`);
    const expression = this.alternation();
    if (this.#at < this.#characters.length) throw this.refusal("has a parenthesis too many");
    return expression;
  }

  private alternation(): string {
    const parts = [this.sequence()];
    while (this.take("|")) parts.push(this.sequence());
    return parts.join("|");
  }

  private sequence(): string {
    const parts: string[] = [];
    while (!["", "|", ")"].includes(this.peek())) parts.push(this.quantified());
    return parts.join("");
  }

  private quantified(): string {
    // A lookahead matches in one way alone, so this adds no backtracking.
    for (const [written, meant] of Object.entries(ASSERTIONS)) if (this.take(written)) return this.boundaries ? `(?=${meant}|(?<=\\v)|\\v)` : meant;
    const outer = this.#copies;
    this.#copies = 1;
    const repeated = this.atom() + this.quantifier();
    this.#copies = Math.max(outer, this.#copies);
    if (["*", "+", "?", "{"].includes(this.peek())) throw this.refusal("repeats what is repeated already");
    return repeated;
  }

  private quantifier(): string {
    let quantifier = "";
    if (["*", "+", "?"].includes(this.peek())) quantifier = this.next();
    else {
      const counts = COUNTS.exec(this.rest(12));
      if (counts === null) return "";
      [quantifier] = counts;
      this.#at += quantifier.length;
      const least = Number(counts[1]);
      const most = Number(counts[3] ?? counts[1]);
      if (most < least) throw this.refusal("has the ends of a count the wrong way round");
      this.#copies *= Math.max(most, 1);
      if (this.#copies > MAX_COPIES) throw this.refusal(`repeats a part more than ${MAX_COPIES} times`);
    }
    return quantifier + (this.take("?") ? "?" : "");
  }

  private atom(): string {
    const character = this.next();
    switch (character) {
      case "(":
        return this.group();
      case "[":
        return this.written(this.bracket());
      case ".":
        return this.written(subtract(ANY, single("\n")));
      case "]":
      case "{":
      case "}":
        throw this.refusal(`has a ${character} that must be written \\${character}`);
      case "*":
      case "+":
      case "?":
        throw this.refusal("has nothing to repeat");
      default: {
        this.#at--;
        const [member, isClass] = this.member();
        return this.written(isClass ? member : this.cased(member));
      }
    }
  }

  private group(): string {
    if (this.peek() === "?" && !this.take("?:")) {
      throw this.refusal("has a group that Python and JavaScript read differently: lookaround, names and flags are not taken");
    }
    if (++this.#depth > MAX_DEPTH) throw this.refusal("is nested too deep");
    const inner = this.alternation();
    this.#depth--;
    if (!this.take(")")) throw this.refusal("has a group without an end");
    return `(?:${inner})`;
  }

  private bracket(): Ranges {
    const negated = this.take("^");
    const parts: (readonly [number, number])[] = [];
    while (!this.take("]")) {
      const [start, isClass] = this.member();
      let member = start;
      if (this.peek() === "-" && this.#characters[this.#at + 1] !== "]") {
        this.#at++;
        const [end, endsInClass] = this.member();
        const [first = 0, last = 0] = [start[0]?.[0], end[0]?.[0]];
        if (isClass || endsInClass || last < first) throw this.refusal("has a range whose end is no character above its start");
        member = [[first, last]];
      }
      parts.push(...(isClass ? member : this.cased(member)));
    }
    if (parts.length === 0) throw this.refusal("has an empty [], or a ] in it that must be written \\]");
    return negated ? subtract(ANY, parts) : union(parts);
  }

  /** Characters, and whether they are a class: those are as they are in either case. */
  private member(): readonly [Ranges, boolean] {
    let character = this.next();
    if (character !== "\\") return [single(character), false];
    character = this.next();
    const named = /^[dwsDWS]$/.test(character) ? CLASSES[character.toLowerCase()] : undefined;
    if (named !== undefined) return [/[DWS]/.test(character) ? subtract(ANY, named) : named, true];
    const code = CODES[character];
    if (code !== undefined) {
      const digits = code.exec(this.rest(4))?.[0];
      const point = Number.parseInt(digits ?? "d800", 16);
      if (digits === undefined || isSurrogate(point)) throw this.refusal(`has a \\${character} without the digits of a character`);
      this.#at += digits.length;
      return [[[point, point]], false];
    }
    const control = CONTROLS[character];
    if (control === undefined && /^[A-Za-z0-9]$/.test(character)) {
      throw this.refusal(`has \\${character}, which Python and JavaScript read differently, or not at all`);
    }
    return [single(control ?? character), false];
  }

  /** With the other case of each character, where case is ignored. */
  private cased(ranges: Ranges): Ranges {
    if (!this.ignoreCase) return ranges;
    const both = [...ranges];
    for (const [first, last] of ranges) {
      for (let point = first; point <= Math.max(first, Math.min(last, LAST_CASED)); point++) {
        for (const form of cases(String.fromCodePoint(point))) both.push(...single(form));
      }
    }
    return union(both);
  }

  private written(ranges: Ranges): string {
    const [first] = ranges;
    if (first === undefined || isSurrogate(first[0])) throw this.refusal("has a class without a character");
    if (!this.boundaries) return classOf(ranges);
    // Only the optional one after a character matches a boundary, so that there is one way to match it.
    const others = subtract(ranges, single(BOUNDARY));
    return others.length === 0 ? "(?!)" : `(?:${classOf(others)}\\v?)`;
  }

  private peek(): string {
    return this.#characters[this.#at] ?? "";
  }

  private next(): string {
    const character = this.#characters[this.#at++];
    if (character === undefined) throw this.refusal("ends too early");
    return character;
  }

  private take(text: string): boolean {
    if (this.rest(text.length) !== text) return false;
    this.#at += text.length;
    return true;
  }

  private rest(most: number): string {
    return this.#characters.slice(this.#at, this.#at + most).join("");
  }

  private refusal(problem: string): Error {
    return new Error(`the pattern ${JSON.stringify(this.#characters.slice(0, 80).join(""))} ${problem}`);
  }
}

function classOf(ranges: Ranges): string {
  return `[${ranges.map(([low, high]) => `\\u{${low.toString(16)}}-\\u{${high.toString(16)}}`).join("")}]`;
}

/** A character in both cases; such as become two by it are left out. */
function cases(character: string): readonly string[] {
  const forms = [character, character.toLowerCase(), character.toUpperCase()];
  return forms.flatMap((form) => [form, form.toLowerCase(), form.toUpperCase()]).filter((form) => Array.from(form).length === 1);
}

function isSurrogate(point: number): boolean {
  return point >= 0xd800 && point <= 0xdfff;
}

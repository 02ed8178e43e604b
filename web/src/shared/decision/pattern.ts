// Patterns of private texts: the regular expressions that Python's re and JavaScript's RegExp read alike. The page
// compiles them for automaton.ts, whose searches take linear time. Python searches with its library regex, 20 to 70
// times faster than this automaton in QuickJS; `patternSource` writes a pattern for it.
//
// Characters, . [...] (...) (?:...) | and * + ? {n} {n,} {n,m} with their lazy forms, ^ and $ (the ends of the text),
// \b \B \d \D \w \W \s \S in ASCII's meaning, \t \n \r \f \v \xHH \uHHHH, and a backslash before any sign. Everything
// else (lookaround, back references, named groups, flags) is an error.

import type { Ranges } from "../grammar/ebnf.js";
import { ANY, single, subtract, union } from "../grammar/ebnf.js";
import { Automaton, MAX_STATES, PartBuilder } from "./automaton.js";
import type { Assertion, Builder } from "./automaton.js";
import { BOUNDARY } from "./readings.js";

const MAX_CHARACTERS = 1000;
const MAX_DEPTH = 50;
/** Ranges are extended to both cases for the scripts up to here: Latin, Greek, Cyrillic. */
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
const ASSERTIONS = ["^", "$", "\\b", "\\B"] as const;

/** Compiles a pattern. Throws Error if it is outside the subset or exceeds a limit. */
export function compilePattern(pattern: string, ignoreCase: boolean): Automaton {
  const tooLarge = () => patternError(pattern, `needs more than ${MAX_STATES} states; shorten it or reduce its counts`);
  return new Automaton(new Parser(pattern, ignoreCase, new PartBuilder(tooLarge)).parse());
}

/**
 * The pattern for Python's library regex, with every character as its code point, so that it cannot be read
 * differently. With ``boundaries``, a match may continue over a BOUNDARY, and beside it every assertion holds. Throws
 * as `compilePattern`.
 */
export function patternSource(pattern: string, ignoreCase: boolean, boundaries: boolean): string {
  compilePattern(pattern, ignoreCase);
  return new Parser(pattern, ignoreCase, sourceBuilder(boundaries)).parse();
}

/** In re, \\B does not match an empty text (until Python 3.14); in JavaScript it does. */
const WRITTEN: Readonly<Record<Assertion, string>> = { "^": "\\A", $: "\\Z", "\\b": "\\b", "\\B": "(?!\\b)" };

function sourceBuilder(boundaries: boolean): Builder<string> {
  return {
    character: (ranges) => {
      if (!boundaries) return classOf(ranges);
      // A boundary matches only as the optional character after another one, so that there is one way to match it.
      const others = subtract(ranges, single(BOUNDARY));
      return others.length === 0 ? "(?!)" : `(?:${classOf(others)}\\x0b?)`;
    },
    // A lookahead matches in only one way, so this adds no backtracking.
    assertion: (assertion) => (boundaries ? `(?=${WRITTEN[assertion]}|(?<=\\x0b)|\\x0b)` : WRITTEN[assertion]),
    sequence: (parts) => parts.join(""),
    alternatives: (parts) => `(?:${parts.join("|")})`,
    repeated: (part, least, most) => `${part}{${least},${most === Infinity ? "" : most}}`,
  };
}

function classOf(ranges: Ranges): string {
  const code = (point: number): string => `\\U${point.toString(16).padStart(8, "0")}`;
  return `[${ranges.map(([first, last]) => `${code(first)}-${code(last)}`).join("")}]`;
}

/** Throws Error for a pattern that would make every text private. */
export function refuseEmptyMatch(pattern: string, compiled: Automaton): void {
  if (compiled.test(""))
    throw new Error(`the pattern ${JSON.stringify(pattern)} matches the empty text, and so every text`);
}

class Parser<Part> {
  readonly #characters: readonly string[];
  #at = 0;
  #depth = 0;

  constructor(
    pattern: string,
    private readonly ignoreCase: boolean,
    private readonly builder: Builder<Part>,
  ) {
    this.#characters = Array.from(pattern);
  }

  parse(): Part {
    if (this.#characters.length > MAX_CHARACTERS) throw this.#error(`has more than ${MAX_CHARACTERS} characters`);
    const pattern = this.#alternation();
    if (this.#at < this.#characters.length) throw this.#error("has a closing parenthesis without an opening one");
    return pattern;
  }

  #alternation(): Part {
    const branches = [this.#sequence()];
    while (this.#accept("|")) branches.push(this.#sequence());
    return this.builder.alternatives(branches);
  }

  #sequence(): Part {
    const parts: Part[] = [];
    while (!["", "|", ")"].includes(this.#peek())) parts.push(this.#quantified());
    return this.builder.sequence(parts);
  }

  #quantified(): Part {
    for (const assertion of ASSERTIONS) if (this.#accept(assertion)) return this.builder.assertion(assertion);
    const repeated = this.#repeated(this.#atom());
    if (["*", "+", "?", "{"].includes(this.#peek())) throw this.#error("has two quantifiers in a row");
    return repeated;
  }

  #repeated(part: Part): Part {
    let [least, most] = [0, Infinity];
    const counts = COUNTS.exec(this.#rest(12));
    if (this.#accept("?")) most = 1;
    else if (this.#accept("+")) least = 1;
    else if (!this.#accept("*")) {
      if (counts === null) return part;
      this.#at += counts[0].length;
      least = Number(counts[1]);
      most = counts[2] === "," ? Infinity : Number(counts[3] ?? least);
      if (most < least) throw this.#error("has a count whose maximum is below its minimum");
    }
    // The lazy form matches the same texts.
    this.#accept("?");
    return this.builder.repeated(part, least, most);
  }

  #atom(): Part {
    const character = this.#next();
    switch (character) {
      case "(":
        return this.#group();
      case "[":
        return this.#part(this.#bracket());
      case ".":
        return this.#part(subtract(ANY, single("\n")));
      case "]":
      case "{":
      case "}":
        throw this.#error(`has a ${character} that must be written \\${character}`);
      case "*":
      case "+":
      case "?":
        throw this.#error("has a quantifier without anything to repeat");
      default: {
        this.#at--;
        const [member, isClass] = this.#member();
        return this.#part(isClass ? member : this.#bothCases(member));
      }
    }
  }

  #group(): Part {
    if (this.#peek() === "?" && !this.#accept("?:")) {
      throw this.#error(
        "has a group that Python and JavaScript read differently: lookaround, names and flags are not supported",
      );
    }
    if (++this.#depth > MAX_DEPTH) throw this.#error("is nested too deeply");
    const inner = this.#alternation();
    this.#depth--;
    if (!this.#accept(")")) throw this.#error("has a group that is not closed");
    return inner;
  }

  #bracket(): Ranges {
    const negated = this.#accept("^");
    const parts: (readonly [number, number])[] = [];
    while (!this.#accept("]")) {
      const [start, isClass] = this.#member();
      let member = start;
      if (this.#peek() === "-" && this.#characters[this.#at + 1] !== "]") {
        this.#at++;
        const [end, endsInClass] = this.#member();
        const [first = 0, last = 0] = [start[0]?.[0], end[0]?.[0]];
        if (isClass || endsInClass || last < first)
          throw this.#error("has a range whose end is not a character above its start");
        member = [[first, last]];
      }
      parts.push(...(isClass ? member : this.#bothCases(member)));
    }
    if (parts.length === 0) throw this.#error("has an empty [], or a ] in it that must be written \\]");
    return negated ? subtract(ANY, parts) : union(parts);
  }

  /** Characters, and whether they are a class: a class is used as it is, whatever the case. */
  #member(): readonly [Ranges, boolean] {
    let character = this.#next();
    if (character !== "\\") return [single(character), false];
    character = this.#next();
    const named = /^[dwsDWS]$/.test(character) ? CLASSES[character.toLowerCase()] : undefined;
    if (named !== undefined) return [/[DWS]/.test(character) ? subtract(ANY, named) : named, true];
    const code = CODES[character];
    if (code !== undefined) {
      const digits = code.exec(this.#rest(4))?.[0];
      const point = Number.parseInt(digits ?? "d800", 16);
      if (digits === undefined || isSurrogate(point))
        throw this.#error(`has a \\${character} without the digits of a character`);
      this.#at += digits.length;
      return [[[point, point]], false];
    }
    const control = CONTROLS[character];
    if (control === undefined && /^[A-Za-z0-9]$/.test(character)) {
      throw this.#error(`has \\${character}, which Python and JavaScript read differently or reject`);
    }
    return [single(control ?? character), false];
  }

  /** The ranges with the other case of each character, if case is ignored. */
  #bothCases(ranges: Ranges): Ranges {
    if (!this.ignoreCase) return ranges;
    const both = [...ranges];
    for (const [first, last] of ranges) {
      for (let point = first; point <= Math.max(first, Math.min(last, LAST_CASED)); point++) {
        for (const form of cases(String.fromCodePoint(point))) both.push(...single(form));
      }
    }
    return union(both);
  }

  #part(ranges: Ranges): Part {
    const [first] = ranges;
    if (first === undefined || isSurrogate(first[0])) throw this.#error("has a class that matches no character");
    return this.builder.character(ranges);
  }

  #peek(): string {
    return this.#characters[this.#at] ?? "";
  }

  #next(): string {
    const character = this.#characters[this.#at++];
    if (character === undefined) throw this.#error("ends too early");
    return character;
  }

  #accept(text: string): boolean {
    if (this.#rest(text.length) !== text) return false;
    this.#at += text.length;
    return true;
  }

  #rest(most: number): string {
    return this.#characters.slice(this.#at, this.#at + most).join("");
  }

  #error(problem: string): Error {
    return patternError(this.#characters.join(""), problem);
  }
}

function patternError(pattern: string, problem: string): Error {
  return new Error(`the pattern ${JSON.stringify(Array.from(pattern).slice(0, 80).join(""))} ${problem}`);
}

/** A character in both cases, without those that become two characters. */
function cases(character: string): readonly string[] {
  const forms = [character, character.toLowerCase(), character.toUpperCase()];
  return forms
    .flatMap((form) => [form, form.toLowerCase(), form.toUpperCase()])
    .filter((form) => Array.from(form).length === 1);
}

function isSurrogate(point: number): boolean {
  return point >= 0xd800 && point <= 0xdfff;
}

// Grammar rules for JSON strings: their length, pattern and format, and property names that differ from a list.

import { RequestError } from "../../errors.js";
import { FOLLOWED, languageRule } from "./automaton.js";
import type { Ranges, RuleBook } from "./ebnf.js";
import { alternatives, charClass, literal, repeat, single, subtract } from "./ebnf.js";
import { SHORT_URI_LENGTH, UNRESTRICTED, shortUri, stringLanguage } from "./formats.js";
import { parseRegex } from "./regex.js";
import type { SchemaObject } from "./schema_merge.js";
import { countOf } from "./schema_parts.js";

// A string of at most this length has one rule for each character. Compiling tries the entire vocabulary on each rule.
const MOST_RULES = 16;
const HEX = "[0-9a-fA-F]";
// The characters that a JSON string holds unescaped, and the ASCII ones among them.
const PLAIN = '[^\\x00-\\x1f"\\\\]';
const PLAIN_ASCII: Ranges = [
  [0x20, 0x21],
  [0x23, 0x5b],
  [0x5d, 0x7f],
];

/** Adds the rules of strings to a book. Its methods throw RequestError. */
export interface Strings {
  /** Whether strings have no escapes and property names are bare words. */
  readonly isMarked: boolean;
  /** The expression of a string that is valid in ``schema``; null if no string is. */
  of(schema: SchemaObject, where: string): string | null;
  any(): string;
  anyKey(): string;
  key(name: string, where: string): string;
  /** A name that is not in ``names``. */
  otherKey(names: readonly string[], where: string): string;
  /** A name in which ``pattern`` matches somewhere. */
  matching(pattern: string, where: string): string | null;
  /** The text of a constant. */
  constant(value: unknown, where: string): string;
}

/** The strings of JSON. */
export class StringRules implements Strings {
  readonly isMarked = false;
  readonly #otherKeys = new Map<string, string>();

  constructor(private readonly book: RuleBook) {}

  /** The expression of a string that is valid in ``schema``; null if no string is. Throws RequestError. */
  of(schema: SchemaObject, where: string): string | null {
    const { pattern } = schema;
    const format = UNRESTRICTED.has(schema.format) ? undefined : schema.format;
    const min = countOf(schema.minLength, 0, `${where}.minLength`);
    const max = countOf(schema.maxLength, Infinity, `${where}.maxLength`);
    if (pattern !== undefined || format !== undefined) {
      // Counted characters would be a state beside those of the format.
      const isShort = pattern === undefined && format === "uri" && max !== Infinity && max >= SHORT_URI_LENGTH;
      const language = isShort ? shortUri(where) : stringLanguage(pattern, format, where);
      this.book.demand('""'.length);
      const rule = languageRule(this.book, language, "string", where, { min, max: isShort ? Infinity : max });
      if (rule === null && pattern !== undefined && format !== undefined) {
        // The grammar's form of a format leaves out some of its texts, so this does not prove that none exists.
        throw new RequestError(
          `${where}: the grammar of the format ${JSON.stringify(format)} has no text that matches the pattern; ` +
            "remove the format or the pattern",
          { keyword: "format" },
        );
      }
      return quoted(rule);
    }
    if (min > max) return null;
    if (min > 0) this.book.endings.add("a".repeat(min));
    this.book.demand(min + '""'.length);
    return `"\\"" ${this.characters(min, max)}`;
  }

  any(): string {
    return this.book.once("any_string", () => `("\\"" ${this.characters(0, Infinity)}) ${FOLLOWED}`);
  }

  anyKey(): string {
    return this.any();
  }

  key(name: string): string {
    return literal(JSON.stringify(name));
  }

  constant(value: unknown): string {
    return JSON.stringify(value);
  }

  /** A string in which ``pattern`` matches somewhere. */
  matching(pattern: string, where: string): string | null {
    return quoted(languageRule(this.book, parseRegex(pattern, where, true), "string", where));
  }

  /** A name that is not in ``names``. It has no escapes, so that no name has two spellings. */
  otherKey(names: readonly string[]): string {
    const cached = this.#otherKeys.get(names.join("\0"));
    if (cached !== undefined) return cached;
    const after = (rests: readonly string[]): string => {
      if (rests.length === 0) return this.plainRest();
      const heads = [...new Set(rests.flatMap((rest) => Array.from(rest).slice(0, 1)))];
      const ascii = heads.reduce<Ranges>((set, head) => subtract(set, single(head)), PLAIN_ASCII);
      const beyond = (head: string): string =>
        after(rests.filter((rest) => rest.startsWith(head)).map((rest) => rest.slice(head.length)));
      return alternatives([
        ...(rests.includes("") ? [] : ['"\\""']),
        `${charClass(ascii)} ${this.plainRest()}`,
        ...(heads.every((head) => head < "\x80") ? [`[^\\x00-\\x7f] ${this.plainRest()}`] : []),
        ...heads.map((head) => `${literal(head)} ${this.book.add("key", `(${beyond(head)}) ${FOLLOWED}`)}`),
      ]);
    };
    // A name that JSON must escape cannot occur.
    const plain = names.filter((name) => JSON.stringify(name) === `"${name}"`);
    const rule = this.book.add("key", `("\\"" ${after(plain)}) ${FOLLOWED}`);
    this.#otherKeys.set(names.join("\0"), rule);
    return rule;
  }

  private plainRest(): string {
    return this.book.once("plain_rest", () => `(${PLAIN}* "\\"") ${FOLLOWED}`);
  }

  /**
   * The ``min`` to ``max`` characters of a string, and its closing quote. Each character of a short string has a rule.
   * Counted characters of a long string are never escaped, because xgrammar is slow if they may be.
   */
  private characters(min: number, max: number): string {
    if (min === 0 && max === Infinity) return this.book.once("characters", () => this.oneMore("characters", true));
    if (Math.max(min, max === Infinity ? 0 : max) > MOST_RULES) {
      const character = this.book.once("plain_character", () => PLAIN);
      return max === Infinity
        ? `${repeat(character, min, min)} ${this.characters(0, Infinity)}`
        : `${repeat(character, min, max)} "\\""`;
    }
    let following =
      max === Infinity ? this.characters(0, Infinity) : this.book.once("quote", () => `"\\"" ${FOLLOWED}`);
    for (let index = (max === Infinity ? min : max) - 1; index >= 0; index--)
      following = this.book.add("characters", this.oneMore(following, index >= min && max !== Infinity));
    return following;
  }

  /**
   * One character, then ``following``; or, if the string may end here, the closing quote. Escapes never spell
   * surrogates, so that each escape is one character.
   */
  private oneMore(following: string, ends: boolean): string {
    const code = `"u" ([0-9a-ce-fA-CE-F] ${HEX} ${HEX} ${HEX} | [dD] [0-7] ${HEX} ${HEX})`;
    const escape = this.book.once("escape", () => `"\\\\" (["\\\\/bfnrt] | ${code})`);
    return `(${ends ? '"\\"" | ' : ""}${PLAIN} ${following} | ${escape} ${following}) ${FOLLOWED}`;
  }
}

function quoted(inside: string | null): string | null {
  return inside === null ? null : `"\\"" ${inside}`;
}

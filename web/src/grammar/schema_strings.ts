// Grammar rules for JSON strings: their length, pattern and format, and property names that differ from a list.

import { RequestError } from "../errors.js";
import { languageRule } from "./automaton.js";
import type { Ranges, RuleBook } from "./ebnf.js";
import { alternatives, charClass, literal, repeat, single, subtract } from "./ebnf.js";
import { SHORT_URI_LENGTH, UNRESTRICTED, shortUri, stringLanguage } from "./formats.js";
import { parseRegex } from "./regex.js";
import type { SchemaObject } from "./schema_merge.js";
import { countOf } from "./schema_parts.js";

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
      const rule = languageRule(this.book, language, "json", where, { min, max: isShort ? Infinity : max });
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
    return min === 0 && max === Infinity ? this.any() : `"\\"" ${repeat(this.character(), min, max)} "\\""`;
  }

  any(): string {
    const character = this.character();
    return this.book.once("any_string", () => `"\\"" ${character}* "\\""`);
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
    return quoted(languageRule(this.book, parseRegex(pattern, where, true), "json", where));
  }

  /** A name that is not in ``names``. It has no escapes, so that no name has two spellings. */
  otherKey(names: readonly string[]): string {
    const cached = this.#otherKeys.get(names.join("\0"));
    if (cached !== undefined) return cached;
    const after = (rests: readonly string[]): string => {
      if (rests.length === 0) return `${PLAIN}* "\\""`;
      const heads = [...new Set(rests.flatMap((rest) => Array.from(rest).slice(0, 1)))];
      const ascii = heads.reduce<Ranges>((set, head) => subtract(set, single(head)), PLAIN_ASCII);
      const beyond = (head: string): string =>
        after(rests.filter((rest) => rest.startsWith(head)).map((rest) => rest.slice(head.length)));
      return alternatives([
        ...(rests.includes("") ? [] : ['"\\""']),
        `${charClass(ascii)} ${PLAIN}* "\\""`,
        ...(heads.every((head) => head < "\x80") ? [`[^\\x00-\\x7f] ${PLAIN}* "\\""`] : []),
        ...heads.map((head) => `${literal(head)} ${this.book.add("key", beyond(head))}`),
      ]);
    };
    // A name that JSON must escape cannot occur.
    const rule = this.book.add("key", `"\\"" ${after(names.filter((name) => JSON.stringify(name) === `"${name}"`))}`);
    this.#otherKeys.set(names.join("\0"), rule);
    return rule;
  }

  /** One character. Escapes never spell surrogates, so that each escape is one character. */
  private character(): string {
    const escapes = `"\\\\" (["\\\\/bfnrt] | "u" ([0-9a-ce-fA-CE-F] ${HEX} ${HEX} ${HEX} | [dD] [0-7] ${HEX} ${HEX}))`;
    return this.book.once("any_character", () => `${PLAIN} | ${escapes}`);
  }
}

function quoted(inside: string | null): string | null {
  return inside === null ? null : `"\\"" ${inside} "\\""`;
}

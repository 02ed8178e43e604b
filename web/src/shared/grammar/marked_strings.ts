// Grammar rules for strings without escapes, which end at a marker that they cannot contain. Formats of tool calls have
// such strings: Gemma 4's between `<|"|>`, and the text of an XML element.

import { RequestError } from "../../errors.js";
import { languageRule } from "./automaton.js";
import type { RuleBook } from "./ebnf.js";
import { literal, repeat } from "./ebnf.js";
import { stringLanguage } from "./formats.js";
import { parseRegex } from "./regex.js";
import type { SchemaObject } from "./schema_merge.js";
import { isObject } from "./schema_merge.js";
import { countOf } from "./schema_parts.js";
import type { Strings } from "./schema_strings.js";

const NAME = "[a-zA-Z0-9_-]";

/**
 * The markers around a string, and the text that it cannot contain. The first character of that text occurs in it only
 * once.
 */
export interface Marks {
  readonly begin: string;
  readonly end: string;
  readonly forbidden: string;
}

/** Adds the rules of strings to a book. Property names are bare words. */
export class MarkedStrings implements Strings {
  readonly isMarked = true;

  constructor(
    private readonly book: RuleBook,
    private readonly marks: Marks,
  ) {
    book.endings.add(marks.end);
  }

  /** A string with a pattern, a format or a length contains no start of the forbidden text. */
  of({ pattern, format, minLength, maxLength }: SchemaObject, where: string): string | null {
    const { begin, end, forbidden } = this.marks;
    const min = countOf(minLength, 0, `${where}.minLength`);
    const max = countOf(maxLength, Infinity, `${where}.maxLength`);
    this.book.demand(begin.length + min + end.length);
    const [first = "", second = ""] = forbidden;
    if (pattern !== undefined || format !== undefined) {
      const language = stringLanguage(pattern, format, where);
      const parts = language.kind === "intersection" ? language.parts : [language];
      const safe = parseRegex(`([^${first}]|${first}+[^${first}\\${second}])*${first}*`, where);
      const rule = languageRule(this.book, { kind: "intersection", parts: [...parts, safe] }, "answer", where, {
        min,
        max,
      });
      if (rule === null) {
        throw new RequestError(
          `${where}: no text of the pattern or format can be written in this model's tool calls; remove it`,
          { keyword: pattern === undefined ? "format" : "pattern" },
        );
      }
      return `${literal(begin)} ${rule} ${literal(end)}`;
    }
    if (min > max) return null;
    if (min === 0 && max === Infinity) return this.any();
    this.book.endings.add("a".repeat(min) + end);
    return `${literal(begin)} ${repeat(except(first), min, max)} ${literal(end)}`;
  }

  any(): string {
    return this.book.once("marked_string", () => `${literal(this.marks.begin)} ${this.rest(0)}`);
  }

  anyKey(): string {
    return this.book.once("bare_key", () => `${NAME}+`);
  }

  key(name: string, where: string): string {
    if (!/^[a-zA-Z0-9_-]+$/.test(name)) {
      throw new RequestError(
        `${where}: the property ${JSON.stringify(name)} cannot be written in this model's tool calls; use letters, ` +
          "digits, '_' and '-'",
      );
    }
    return literal(name);
  }

  /** Throws RequestError if there are ``names``, because the rules cannot exclude them. */
  otherKey(names: readonly string[], where: string): string {
    if (names.length > 0) throw unsupported(where, "additionalProperties", " beside properties", "set it to false");
    return this.anyKey();
  }

  matching(_: string, where: string): string {
    throw unsupported(where, "patternProperties", "", "remove it");
  }

  constant(value: unknown, where: string): string {
    const { begin, end, forbidden } = this.marks;
    if (typeof value === "string") {
      if (value.includes(forbidden))
        throw new RequestError(`${where}: a constant contains '${forbidden}', which ends a tool call's string`);
      return begin + value + end;
    }
    if (Array.isArray(value)) return `[${value.map((item) => this.constant(item, where)).join(",")}]`;
    if (!isObject(value)) return JSON.stringify(value);
    const members = Object.entries(value).map(([name, item]) => {
      this.key(name, where);
      return `${name}:${this.constant(item, where)}`;
    });
    return `{${members.join(",")}}`;
  }

  /** The rest of a string after the first ``matched`` characters of the forbidden text, and its end. */
  private rest(matched: number): string {
    return this.book.once(`marked_rest_${matched}`, () => {
      const { end, forbidden } = this.marks;
      const [first = "", following = ""] = [forbidden[0], forbidden[matched]];
      const others = matched === 0 ? first : first + following;
      const ways = [literal(end), `${except(others)} ${this.rest(0)}`, `${literal(first)} ${this.rest(1)}`];
      if (matched > 0 && matched < forbidden.length - 1) ways.push(`${literal(following)} ${this.rest(matched + 1)}`);
      return ways.join(" | ");
    });
  }
}

function unsupported(where: string, keyword: string, beside: string, remedy: string): RequestError {
  return new RequestError(`${where}: ${keyword}${beside} is not supported in this model's tool calls; ${remedy}`, {
    keyword,
  });
}

function except(characters: string): string {
  return `[^${literal(characters).slice(1, -1)}]`;
}

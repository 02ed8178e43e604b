// Helpers that the rules of every JSON type share: choices, white space, and the checks of a keyword's value.

import { RequestError } from "../../errors.js";
import type { RuleBook } from "./ebnf.js";
import { alternatives } from "./ebnf.js";
import type { Schema } from "./schema_merge.js";
import { isObject, listOf } from "./schema_merge.js";

/** Any one of the expressions that are not null; null if all are. */
export function choice(book: RuleBook, expressions: readonly (string | null)[]): string | null {
  const ways = expressions.filter((expression) => expression !== null);
  if (ways.length < 2) return ways[0] ?? null;
  return alternatives(ways.map((way) => (book.joins ? book.add("way", way) : `(${way})`)));
}

/**
 * White space between JSON tokens: nothing, one space, or a new line with its indent. It is bounded, because a model
 * could otherwise write spaces for ever.
 */
export function space(book: RuleBook): string {
  return !book.spaced ? '""' : book.once("space", () => '"" | " " | "\\n" [ \\t]{0,20}');
}

export function countOf(value: unknown, missing: number, where: string): number {
  if (value === undefined) return missing;
  if (!Number.isInteger(value) || (value as number) < 0 || (value as number) >= 2 ** 31)
    throw new RequestError(`${where} must be a whole number of at least 0, and below 2^31`);
  return value as number;
}

export function checkedList(value: unknown, where: string): readonly Schema[] {
  if (value !== undefined && !Array.isArray(value)) throw new RequestError(`${where} must be a list`);
  return listOf(value) as readonly Schema[];
}

export function checkedRecord(value: unknown, where: string): Record<string, unknown> {
  if (value !== undefined && !isObject(value)) throw new RequestError(`${where} must be an object`);
  return { ...value };
}

/** Whether every value of a schema is a string: by its type, or by its constants if it has no type. */
export function isText(schema: unknown): boolean {
  const { type, const: constant, enum: values = [constant] } = Object(schema) as Readonly<Record<string, unknown>>;
  if (type !== undefined) return type === "string" || JSON.stringify(type) === '["string"]';
  return Array.isArray(values) && values.length > 0 && values.every((value) => typeof value === "string");
}

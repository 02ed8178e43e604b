// Grammar rules for JSON arrays: their leading items, their other items and their length.

import { RequestError } from "../../errors.js";
import type { RuleBook } from "./ebnf.js";
import { repeat } from "./ebnf.js";
import type { Schema, SchemaObject } from "./schema_merge.js";
import { checkedList, choice, countOf, space } from "./schema_parts.js";
import { listedValues, setExpression, unsupportedSet } from "./schema_sets.js";

/**
 * The expression of an array that is valid in ``schema``; null if no array is. From the schema of an item and its
 * location, ``valueOf`` gives its expression, and ``expand`` the schema that it refers to. Throws RequestError.
 */
export function arrayExpression(
  book: RuleBook,
  schema: SchemaObject,
  where: string,
  valueOf: (schema: unknown, where: string) => string | null,
  expand: (schema: Schema, where: string) => Schema,
): string | null {
  const min = countOf(schema.minItems, 0, `${where}.minItems`);
  const max = countOf(schema.maxItems, Infinity, `${where}.maxItems`);
  // Before draft 2020-12, `items` was the list of leading items and `additionalItems` described the others.
  const isList = Array.isArray(schema.items);
  const prefix = checkedList(schema.prefixItems ?? (isList ? schema.items : []), `${where}.prefixItems`);
  const following = isList ? schema.additionalItems : schema.items;
  const { uniqueItems = false } = schema;
  if (typeof uniqueItems !== "boolean")
    throw new RequestError(`${where}.uniqueItems must be true or false`, { keyword: "uniqueItems" });
  if (uniqueItems && max > 1) {
    const one = `${where}.items`;
    const listed = prefix.length > 0 || following === undefined ? null : listedValues(following as Schema, one, expand);
    if (listed === null) throw unsupportedSet(where);
    return setExpression(book, listed, { min, max }, where, (value) => valueOf(value, one) ?? '""');
  }
  const first = prefix
    .slice(0, Math.min(prefix.length, max))
    .map((item, index) => valueOf(item, `${where}.prefixItems[${index}]`));
  if (first.some((item) => item === null)) return null;
  const { demanded } = book;
  const item = valueOf(following ?? prefix.length === 0, `${where}.items`);
  const [low, high] = [Math.max(min - first.length, 0), item === null ? 0 : max - first.length];
  const one = book.demanded - demanded + ",".length;
  book.demand("[]".length + first.length * ",".length + Math.max(low - 1, 0) * one);
  if (low > high) return null;
  const comma = `"," ${space(book)}`;
  const begin = `"[" ${space(book)}`;
  const end = `${space(book)} "]"`;
  // Without leading items, the first item has no comma before it.
  const bare = first.length > 0 ? 0 : 1;
  const named = item === null || first.length > 0 || high < 2 ? item : book.named("item", item);
  const more = item === null || high === 0 ? "" : repeat(`${comma} ${named}`, Math.max(low - bare, 0), high - bare);
  if (first.length > 0) return `${begin} ${first.join(` ${comma} `)} ${more} ${end}`;
  if (item === null || high === 0) return `${begin} "]"`;
  const some = `${begin} ${named} ${more} ${end}`;
  return low > 0 ? some : choice(book, [some, `${begin} "]"`]);
}

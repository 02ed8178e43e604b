// Grammar rules for JSON arrays: their leading items, their other items and their length.

import { RequestError } from "../errors.js";
import type { RuleBook } from "./ebnf.js";
import { repeat } from "./ebnf.js";
import type { SchemaObject } from "./schema_merge.js";
import { checkedList, choice, countOf, space } from "./schema_parts.js";

/**
 * The expression of an array that is valid in ``schema``; null if no array is. ``valueOf`` gives the expression of an
 * item from its schema and its location. Throws RequestError.
 */
export function arrayExpression(
  book: RuleBook,
  schema: SchemaObject,
  where: string,
  valueOf: (schema: unknown, where: string) => string | null,
): string | null {
  const min = countOf(schema.minItems, 0, `${where}.minItems`);
  const max = countOf(schema.maxItems, Infinity, `${where}.maxItems`);
  // Before draft 2020-12, `items` was the list of leading items and `additionalItems` described the others.
  const isList = Array.isArray(schema.items);
  const prefix = checkedList(schema.prefixItems ?? (isList ? schema.items : []), `${where}.prefixItems`);
  const following = isList ? schema.additionalItems : schema.items;
  if (schema.uniqueItems === true && max > 1) {
    throw new RequestError(
      `${where}: the keyword 'uniqueItems' is not supported, because a grammar cannot compare items; remove it ` +
        "(in pydantic, use a list instead of a set), and drop equal items from the answer",
      { keyword: "uniqueItems" },
    );
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
  const more = item === null || high === 0 ? "" : repeat(`${comma} ${item}`, Math.max(low - bare, 0), high - bare);
  if (first.length > 0) return `${begin} ${first.join(` ${comma} `)} ${more} ${end}`;
  if (item === null || high === 0) return `${begin} "]"`;
  const some = `${begin} ${item} ${more} ${end}`;
  return low > 0 ? some : choice(book, [some, `${begin} "]"`]);
}

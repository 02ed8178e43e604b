// Grammar rules for JSON arrays whose items are all different, if few values are listed for an item.

import { RequestError } from "../../errors.js";
import type { RuleBook } from "./ebnf.js";
import type { Schema, SchemaObject } from "./schema_merge.js";
import { allowedConstants, constantsOf, merge, typesOf } from "./schema_merge.js";
import { checkedList, choice, space } from "./schema_parts.js";

/** The sets of items that may be written already. Each is a rule: all sets of 8 values. */
const MOST_SETS = 256;
const MAX_DEPTH = 100;

type Expand = (schema: Schema, where: string) => Schema;

/**
 * All values of the schema, each once, if it lists them and they are neither lists nor objects; otherwise null.
 * ``expand`` gives the schema that a reference leads to.
 */
export function listedValues(schema: Schema, where: string, expand: Expand, depth = 0): readonly unknown[] | null {
  const expanded = expand(schema, where);
  if (expanded === false) return [];
  if (expanded === true || depth > MAX_DEPTH) return null;
  for (const key of ["allOf", "anyOf", "oneOf"]) {
    if (expanded[key] === undefined) continue;
    const { [key]: listed, ...own } = expanded;
    const parts = checkedList(listed, `${where}.${key}`).map((part) => expand(part, where));
    if (key === "allOf") {
      const all = parts.reduce<Schema>((merged, part) => merge(merged, part, where), own);
      return listedValues(all, where, expand, depth + 1);
    }
    const branches = parts.map((part) => listedValues(merge(own, part, where), where, expand, depth + 1));
    return branches.some((branch) => branch === null) ? null : different(branches.flatMap((branch) => branch ?? []));
  }
  return ownValues(expanded, where);
}

/**
 * The expression of an array of different ``values`` in any order; null if there are fewer than ``min``. ``valueOf``
 * gives the expression of a value from its schema. Throws RequestError if they are too many.
 */
export function setExpression(
  book: RuleBook,
  values: readonly unknown[],
  { min, max }: { readonly min: number; readonly max: number },
  where: string,
  valueOf: (schema: SchemaObject) => string,
): string | null {
  const most = Math.min(max, values.length);
  if (setsOf(values.length, most) > MOST_SETS) throw unsupportedSet(where);
  book.demand("[]".length + most * ",".length);
  if (most < min) return null;
  const items = values.map((value) => book.add("item", valueOf({ const: value })));
  const members = items.map((item) => book.add("member", `"," ${space(book)} ${item}`));
  const rules = new Map<string, string>();
  const ruleOf = (taken: ReadonlySet<number>): string => {
    const key = items.map((_, index) => Number(taken.has(index))).join("");
    const known = rules.get(key);
    if (known !== undefined) return known;
    const ways = (taken.size === 0 ? items : members).flatMap((item, index) =>
      taken.size === most || taken.has(index) ? [] : [`${item} ${ruleOf(new Set([...taken, index]))}`],
    );
    if (taken.size >= min) ways.push(taken.size === 0 ? '"]"' : `${space(book)} "]"`);
    const rule = book.add("set", choice(book, ways) ?? '""');
    rules.set(key, rule);
    return rule;
  };
  return `"[" ${space(book)} ${ruleOf(new Set())}`;
}

export function unsupportedSet(where: string): RequestError {
  return new RequestError(
    `${where}: the keyword 'uniqueItems' is not supported for these items, because a grammar cannot compare them; ` +
      "list at most 8 values for an item (an enum), or remove the keyword (in pydantic, declare list[...] instead of " +
      "a set, and call set() on the answer)",
    { keyword: "uniqueItems" },
  );
}

function ownValues(schema: SchemaObject, where: string): readonly unknown[] | null {
  if (constantsOf(schema) !== null) {
    const values = different(allowedConstants(schema, where));
    return values.some((value) => typeof value === "object" && value !== null) ? null : values;
  }
  const types = typesOf(schema);
  if (types.some((type) => type !== "boolean" && type !== "null")) return null;
  return types.flatMap((type) => (type === "boolean" ? [false, true] : [null]));
}

function different(values: readonly unknown[]): readonly unknown[] {
  return [...new Map(values.map((value) => [JSON.stringify(value), value])).values()];
}

/** The number of sets of at most ``most`` of ``count`` values. */
function setsOf(count: number, most: number): number {
  let [sets, ofSize] = [1, 1];
  for (let size = 1; size <= most; size++) {
    ofSize = (ofSize * (count - size + 1)) / size;
    sets += ofSize;
  }
  return sets;
}

// Jinja2's filters of sequences. Many are generators, which are read when they are needed and only once.

import { element } from "./attributes.js";
import type { CallFilter, Filter } from "./filters.js";
import { binary, integer } from "./operators.js";
import { callTest } from "./tests.js";
import { reversed } from "./text.js";
import { joined } from "./text_methods.js";
import type { Named, Value } from "./values.js";
import {
  Dict,
  Iterator,
  Range,
  TemplateError,
  Tuple,
  Undefined,
  View,
  compare,
  equal,
  isList,
  iterate,
  str,
  textOf,
  truth,
  typeName,
} from "./values.js";

type Getter = (item: Value) => Value;

const ignoreCase = (value: Value): Value => textOf(value)?.toLowerCase() ?? value;

/** Reads an attribute such as "function.name" of an item. */
function getter(attribute: Value, caseSensitive: Value = true, other: Value = null): Getter {
  const parts = attributeParts(attribute);
  return (item) => {
    let value = item;
    for (const part of parts) {
      value = element(value, part);
      if (other !== null && value instanceof Undefined) value = other;
    }
    return truth(caseSensitive) ? value : ignoreCase(value);
  };
}

function attributeParts(attribute: Value): readonly Value[] {
  if (attribute === null) return [];
  const text = textOf(attribute);
  return text?.split(".").map((part) => (/^\d+$/.test(part) ? BigInt(part) : part)) ?? [attribute];
}

/** sorted(): stable, also in reverse order. Equal keys keep their order. */
function sorted(items: readonly Value[], key: Getter, reverse: Value): readonly Value[] {
  const keyed = items.map((item) => [key(item), item] as const);
  const sign = truth(reverse) ? -1 : 1;
  // Python compares a single item with nothing, and others by < alone.
  return keyed.toSorted(([left], [right]) => sign * (compare(left, right) || 0)).map(([, item]) => item);
}

function extreme(sign: 1 | -1): Filter {
  return [
    "value case_sensitive? attribute?",
    (value, caseSensitive = false, attribute = null) => {
      const read = getter(attribute, caseSensitive);
      let best: readonly [Value, Value] | undefined;
      for (const item of iterate(value)) {
        const key = read(item);
        if (best === undefined || sign * compare(key, best[0]) > 0) best = [key, item];
      }
      return best === undefined ? new Undefined("No aggregated item, sequence was empty.") : best[1];
    },
  ];
}

export const SEQUENCE_FILTERS: Readonly<Record<string, Filter>> = {
  batch: ["value linecount fill_with?", (value, size = null, fill = null) => new Iterator(batches(value, size, fill))],
  dictsort: ["value case_sensitive? by? reverse?", dictSorted],
  first: [
    "seq",
    (value) => {
      for (const item of iterate(value)) return item;
      return new Undefined("No first item, sequence was empty.");
    },
  ],
  groupby: ["value attribute default? case_sensitive?", grouped],
  items: [
    "value",
    (value) => {
      const pairs = function* (): Generator<Value, void> {
        if (value instanceof Undefined) return;
        if (!(value instanceof Dict)) throw new TemplateError("Can only get item pairs from a mapping.");
        for (const pair of value.pairs()) yield new Tuple(pair);
      };
      return new Iterator(pairs());
    },
  ],
  join: [
    "value d? attribute?",
    (value, separator = "", attribute = null) => {
      const read = getter(attribute);
      return joined(
        str(separator),
        Array.from(iterate(value), (item) => str(attribute === null ? item : read(item))),
      );
    },
  ],
  last: [
    "seq",
    (value) => {
      const last = [...iterate(reversible(value))].at(-1);
      return last === undefined ? new Undefined("No last item, sequence was empty.") : last;
    },
  ],
  list: ["value", (value) => [...iterate(value)]],
  max: extreme(1),
  min: extreme(-1),
  reverse: [
    "value",
    (value) => {
      const text = textOf(value);
      return text === undefined
        ? new Iterator([...iterate(value)].toReversed(), "list_reverseiterator")
        : reversed(text);
    },
  ],
  slice: ["value slices fill_with?", (value, count = null, fill = null) => new Iterator(slices(value, count, fill))],
  sort: [
    "value reverse? case_sensitive? attribute?",
    (value, reverse = false, caseSensitive = false, attribute = null) => {
      const readers = (textOf(attribute)?.split(",") ?? [attribute]).map((each) => getter(each, caseSensitive));
      return sorted([...iterate(value)], (item) => readers.map((read) => read(item)), reverse);
    },
  ],
  sum: [
    "iterable attribute? start?",
    (value, attribute = null, start = 0n) => {
      if (textOf(start) !== undefined) throw new TemplateError("sum() can't sum strings");
      const read = getter(attribute);
      let total = start;
      for (const item of iterate(value)) total = binary("+", total, read(item));
      return total;
    },
  ],
  unique: [
    "value case_sensitive? attribute?",
    (value, caseSensitive = false, attribute = null) => new Iterator(unique(value, getter(attribute, caseSensitive))),
  ],
};

/** What reversed() accepts: a generator has no last item. */
function reversible(value: Value): Value {
  const has = textOf(value) !== undefined || isList(value);
  if (has || [Tuple, Dict, View, Range, Undefined].some((kind) => value instanceof kind)) return value;
  throw new TemplateError(`'${typeName(value)}' object is not reversible`);
}

function* unique(value: Value, read: Getter): Generator<Value, void> {
  const seen = new Dict();
  for (const item of iterate(value)) {
    const key = read(item);
    if (seen.get(key) !== undefined) continue;
    seen.set(key, true);
    yield item;
  }
}

function* batches(value: Value, size: Value, fill: Value): Generator<Value, void> {
  let batch: Value[] = [];
  for (const item of iterate(value)) {
    if (equal(BigInt(batch.length), size)) {
      yield batch;
      batch = [];
    }
    batch.push(item);
  }
  if (batch.length === 0) return;
  const missing = fill === null ? 0 : Math.max(0, integer(size) - batch.length);
  yield [...batch, ...Array.from({ length: missing }, () => fill)];
}

function* slices(value: Value, slices_: Value, fill: Value): Generator<Value, void> {
  const [items, count] = [[...iterate(value)], integer(slices_)];
  if (count === 0) throw new TemplateError("integer division or modulo by zero");
  const [each, longer] = [Math.floor(items.length / count), items.length % count];
  let start = 0;
  for (let index = 0; index < count; index += 1) {
    const stop = start + each + (index < longer ? 1 : 0);
    const part = items.slice(start, stop);
    yield fill !== null && index >= longer ? [...part, fill] : part;
    start = stop;
  }
}

function dictSorted(value: Value, caseSensitive: Value = false, by: Value = "key", reverse: Value = false): Value {
  if (by !== "key" && by !== "value") throw new TemplateError('You can only sort by either "key" or "value"');
  if (value instanceof Undefined) return value.fail();
  if (!(value instanceof Dict)) throw new TemplateError(`'${typeName(value)}' object has no attribute 'items'`);
  const read = getter(by === "key" ? 0n : 1n, caseSensitive);
  return sorted(new View(value, "items").items, read, reverse);
}

function grouped(value: Value, attribute: Value = null, other: Value = null, caseSensitive: Value = false): Value {
  const read = getter(attribute, caseSensitive, other);
  const shown = getter(attribute, true, other);
  const groups: [Value, Value[]][] = [];
  for (const item of sorted([...iterate(value)], read, false)) {
    const key = read(item);
    const last = groups.at(-1);
    if (last !== undefined && equal(last[0], key)) last[1].push(item);
    else groups.push([key, [item]]);
  }
  return groups.map(([, items]) => new Tuple([shown(items[0] as Value), items], ["grouper", "list"]));
}

/** map, select, reject, selectattr and rejectattr, which call other filters and tests by name. */
export function callOpenFilter(
  name: string,
  value: Value,
  args: readonly Value[],
  named: Named,
  callFilter: CallFilter,
): Value {
  const prepare = name === "map" ? () => mapper(args, named, callFilter) : () => chooser(name, args, named);
  const results = function* (): Generator<Value, void> {
    if (!truth(value)) return;
    const change = prepare();
    for (const item of iterate(value)) {
      const result = change(item);
      if (name === "map") yield result;
      else if (truth(result) === name.startsWith("select")) yield item;
    }
  };
  return new Iterator(results());
}

function mapper(args: readonly Value[], named: Named, callFilter: CallFilter): Getter {
  if (args.length === 0 && named.has("attribute")) {
    const wrong = [...named.keys()].find((key) => key !== "attribute" && key !== "default");
    if (wrong !== undefined) throw new TemplateError(`Unexpected keyword argument '${wrong}'`);
    return getter(named.get("attribute") ?? null, true, named.get("default") ?? null);
  }
  const [filter, ...rest] = args;
  if (filter === undefined) throw new TemplateError("map requires a filter argument");
  return (item) => callFilter(str(filter), item, rest, named);
}

function chooser(name: string, args: readonly Value[], named: Named): Getter {
  const byAttribute = name.endsWith("attr");
  if (byAttribute && args.length === 0) throw new TemplateError("Missing parameter for attribute name");
  const read = byAttribute ? getter(args[0] ?? null) : (item: Value) => item;
  const [test, ...rest] = byAttribute ? args.slice(1) : args;
  if (test === undefined) return read;
  return (item) => callTest(str(test), read(item), rest, named);
}

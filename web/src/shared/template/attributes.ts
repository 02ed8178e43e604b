// Attributes and items of values, as Jinja2's sandbox looks them up: x.name prefers the attribute, x["name"] the item.

import { formatBraces } from "./format.js";
import { bounds, item } from "./operators.js";
import { bind } from "./parameters.js";
import { TEXT_METHODS, callTextMethod, isTextMethod } from "./text_methods.js";
import type { Named, Value } from "./values.js";
import {
  Callable,
  Dict,
  Loop,
  Markup,
  Namespace,
  Range,
  TemplateError,
  Tuple,
  Undefined,
  Unsupported,
  View,
  equal,
  isList,
  iterate,
  repr,
  str,
  textOf,
  typeName,
} from "./values.js";

// Methods that change a list or dict, which the sandbox forbids.
const CHANGING: Readonly<Record<string, readonly string[]>> = {
  list: ["append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"],
  dict: ["clear", "pop", "popitem", "setdefault", "update"],
};
// Python's attributes that this engine lacks.
const LACKING: Readonly<Record<string, readonly string[]>> = {
  str: ["encode", "isidentifier", "maketrans", "translate"],
  dict: ["fromkeys"],
  int: [
    "as_integer_ratio",
    "bit_count",
    "bit_length",
    "conjugate",
    "denominator",
    "from_bytes",
    "imag",
    "numerator",
    "real",
    "to_bytes",
  ],
  float: ["as_integer_ratio", "conjugate", "fromhex", "hex", "imag", "is_integer", "real"],
  generator: ["close", "send", "throw", "gi_code", "gi_frame", "gi_running", "gi_suspended", "gi_yieldfrom"],
};
const SAME: Readonly<Record<string, string>> = { Markup: "str", bool: "int" };
const LIST_METHODS = ["copy", "count", "index"];
const DICT_METHODS = ["copy", "get", "items", "keys", "values"];
const LOOP_VALUES = [
  "index",
  "index0",
  "revindex",
  "revindex0",
  "first",
  "last",
  "length",
  "depth",
  "depth0",
  "previtem",
  "nextitem",
  "cycle",
  "changed",
];

export const METHODS: ReadonlySet<string> = new Set([
  ...TEXT_METHODS,
  ...LIST_METHODS,
  ...DICT_METHODS,
  ...LOOP_VALUES,
]);
/** Methods of Python's values that templates cannot call here, but in Python. */
export const LACKING_METHODS: readonly string[] = Object.values(LACKING).flat();

/** x.name. */
export function attribute(value: Value, name: string): Value {
  if (value instanceof Undefined) return value.fail();
  const own = ownAttribute(value, name);
  const found = own === undefined ? item(value, name) : own;
  return found === undefined ? missing(value, name) : found;
}

/** x[key], for any key but a slice. */
export function element(value: Value, key: Value): Value {
  const found = item(value, key);
  if (found !== undefined) return found;
  const name = textOf(key);
  const own = name === undefined ? undefined : ownAttribute(value, name);
  return own === undefined ? missing(value, key) : own;
}

function missing(value: Value, key: Value): Undefined {
  const text = textOf(key);
  const name = value === null ? "None" : typeName(value);
  return new Undefined(
    text === undefined ? `${name} object has no element ${repr(key)}` : `'${name} object' has no attribute '${text}'`,
  );
}

/** An attribute of the value itself; undefined if it has none of this name. */
export function ownAttribute(value: Value, name: string): Value | undefined {
  const type = SAME[typeName(value)] ?? typeName(value);
  if (/^__\w+__$/.test(name) || CHANGING[type]?.includes(name) === true)
    return new Undefined(`access to attribute '${name}' of '${type}' object is unsafe.`);
  if (LACKING[type]?.includes(name) === true) throw new Unsupported(`'${name}' of a ${type} is not supported`);
  const method = (call: (args: readonly Value[], named: Named) => Value): Callable => new Callable(name, call);
  const text = textOf(value);
  if (text !== undefined) {
    if (isTextMethod(name)) return method((args, named) => callTextMethod(value, name, args, named));
    if (name === "format" || name === "format_map") return formatter(value, name);
    if (value instanceof Markup && ["escape", "unescape", "striptags"].includes(name))
      throw new Unsupported(`'${name}' of a text that is marked as safe is not supported`);
    return undefined;
  }
  if (value instanceof Dict) return dictAttribute(value, name);
  if (value instanceof Namespace) return value.values.get(name);
  if (value instanceof Loop) return loopAttribute(value, name);
  if (value instanceof Callable) return value.attributes.get(name);
  if (value instanceof Range && ["start", "stop", "step"].includes(name))
    return value[name as "start" | "stop" | "step"];
  if (value instanceof View) {
    if (name === "isdisjoint" || name === "mapping") throw new Unsupported(`'${name}' of a view is not supported`);
    return undefined;
  }
  if (value instanceof Tuple && value.names.includes(name)) return value.items[value.names.indexOf(name)];
  if (isList(value) || value instanceof Tuple || value instanceof Range) return sequenceAttribute(value, name);
  return undefined;
}

function formatter(value: Value, name: string): Callable {
  if (value instanceof Markup) throw new Unsupported(`'${name}' of a text that is marked as safe is not supported`);
  const lookup = (inner: Value, key: Value, isAttribute: boolean): Value =>
    isAttribute ? attribute(inner, str(key)) : element(inner, key);
  return new Callable(name, (args, named) => {
    if (name === "format") return formatBraces(str(value), args, named, lookup);
    const [mapping = null] = bind(name, "mapping |", args, named);
    if (!(mapping instanceof Dict)) throw new TemplateError("format_map() argument must be a mapping");
    return formatBraces(
      str(value),
      [],
      new Map(Array.from(mapping.pairs(), ([key, each]) => [str(key), each])),
      lookup,
    );
  });
}

function dictAttribute(dict: Dict, name: string): Callable | undefined {
  switch (name) {
    case "copy":
      return new Callable(name, (args, named) => (bind(name, "", args, named), new Dict(dict.pairs())));
    case "get":
      return new Callable(name, (args, named) => {
        const [key = null, other = null] = bind(name, "key default? |", args, named);
        const found = dict.get(key);
        return found === undefined ? other : found;
      });
    case "items":
    case "keys":
    case "values":
      return new Callable(name, (args, named) => (bind(name, "", args, named), new View(dict, name)));
  }
  return undefined;
}

function sequenceAttribute(sequence: readonly Value[] | Tuple | Range, name: string): Callable | undefined {
  if (!LIST_METHODS.includes(name) || (name === "copy" && !isList(sequence))) return undefined;
  return new Callable(name, (args, named) => {
    const items = [...iterate(sequence)];
    if (name === "copy") return (bind(name, "", args, named), items);
    const [sought = null, start, stop] = bind(name, name === "count" ? "value |" : "value start? stop? |", args, named);
    if (name === "count") return BigInt(items.filter((each) => equal(each, sought)).length);
    const [from, to] = bounds(items.length, start, stop);
    const at = items.findIndex((each, index) => index >= from && index < to && equal(each, sought));
    if (at === -1) throw new TemplateError(`${repr(sought)} is not in the sequence`);
    return BigInt(at);
  });
}

function loopAttribute(loop: Loop, name: string): Value | undefined {
  switch (name) {
    case "index":
      return BigInt(loop.index0 + 1);
    case "index0":
      return BigInt(loop.index0);
    case "revindex":
      return BigInt(loop.length - loop.index0);
    case "revindex0":
      return BigInt(loop.length - loop.index0 - 1);
    case "first":
      return loop.index0 === 0;
    case "last":
      return loop.peek() === undefined;
    case "length":
      return BigInt(loop.length);
    case "depth":
      return BigInt(loop.depth0 + 1);
    case "depth0":
      return BigInt(loop.depth0);
    case "previtem":
      return neighbour(loop.index0 === 0 ? undefined : loop.previous, "previous");
    case "nextitem":
      return neighbour(loop.peek(), "next");
    case "cycle":
      return new Callable(name, (args) => {
        if (args.length === 0) throw new TemplateError("no items for cycling given");
        return args[loop.index0 % args.length] as Value;
      });
    case "changed":
      return new Callable(name, (args) => {
        const now = new Tuple(args);
        const changed = loop.changedFrom === undefined || !equal(loop.changedFrom, now);
        if (changed) loop.changedFrom = now;
        return changed;
      });
  }
  return undefined;
}

const neighbour = (item: Value | undefined, which: string): Value =>
  item === undefined ? new Undefined(`there is no ${which} item`) : item;

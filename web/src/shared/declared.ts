// Checks values against types that Python declares: its generators write them as data (compiler/bundle/schema.py).

/**
 * A kind of JSON value or a type of the table; "integer 1..9", "integer 0..", or "number 0<..1" for numbers above 0;
 * "=a|b" for one of these texts; "T?" for T or null, "T or U", "T[]" for a list, "T[..9]" for one of at most 9 items,
 * "T{}" for an object whose values are T.
 */
export type TypeName = string;

/** The first wrong value. ``expected`` completes "must be"; it is empty for a key that is not declared. */
export interface Fault {
  readonly path: string;
  readonly expected: string;
  readonly value: unknown;
}

export type FaultOf = (value: unknown, path: string) => Fault | null;

/** A type that was read: what a value must be, and its first fault. */
export interface Type {
  readonly expected: string;
  readonly fault: FaultOf;
}

const KINDS: Readonly<Record<string, string>> = {
  string: "a string",
  number: "a number",
  integer: "an integer",
  boolean: "true or false",
  object: "an object",
};

export const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** Reads types. ``named`` are those of a table, or that no data states. */
export function typeReader(
  named: (type: TypeName, read: (type: TypeName) => Type) => Type | undefined = () => undefined,
): (type: TypeName) => Type {
  const known = new Map<TypeName, Type>();
  const read = (type: TypeName): Type => {
    const found = known.get(type) ?? named(type, read) ?? parsed(type);
    known.set(type, found);
    return found;
  };

  function parsed(type: TypeName): Type {
    const choices = type.split(" or ");
    if (choices.length > 1) {
      const all = choices.map(read);
      const expected = all.map((choice) => choice.expected).join(" or ");
      return whole(expected, (value) => all.some(({ fault }) => fault(value, "") === null));
    }
    if (type.endsWith("?")) {
      const { expected, fault } = read(type.slice(0, -1));
      return { expected, fault: (value, path) => (value === null ? null : fault(value, path)) };
    }
    const [, each, list, most] = /^(.*)(?:(\[)(?:\.\.(\d+))?\]|\{\})$/.exec(type) ?? [];
    if (each !== undefined) {
      const { expected, fault } = read(each);
      const is = (value: unknown): boolean =>
        list ? Array.isArray(value) && value.length <= Number(most ?? Infinity) : isObject(value);
      return whole(
        (list ? "a list" : "an object") + (most ? ` of at most ${most}, each ${expected}` : ""),
        is,
        (value, path) =>
          Object.entries(value).map(([key, item]) => fault(item, list ? `${path}[${key}]` : at(path, key))),
      );
    }
    if (type.startsWith("=")) {
      const texts: readonly unknown[] = type.slice(1).split("|");
      return whole(texts.map((text) => `"${String(text)}"`).join(" or "), (value) => texts.includes(value));
    }
    return plain(type);
  }

  return read;
}

/**
 * Reads the types of a table that Python wrote: names of types, and fields of objects. ``own`` has the checks of the
 * others.
 */
export function tableReader(
  table: Readonly<Record<string, unknown>>,
  own: Readonly<Record<string, FaultOf>> = {},
): (type: TypeName) => Type {
  return typeReader((type, inner) => {
    const [fault, declared] = [own[type], table[type]];
    if (fault !== undefined) return { expected: type, fault };
    if (typeof declared === "string") return inner(declared);
    return declared ? objectOf(declared as Readonly<Record<string, string>>, inner) : undefined;
  });
}

export const matching =
  (pattern: string) =>
  (value: unknown): boolean =>
    typeof value === "string" && new RegExp(pattern).test(value);

/** The checks of a table's types that are patterns of texts. */
export function patternsOf(table: Readonly<Record<string, unknown>>): Readonly<Record<string, FaultOf>> {
  const patterns = Object.entries(table).filter(([, declared]) => isObject(declared) && "pattern" in declared);
  return Object.fromEntries(
    patterns.map(([type, declared]) => [
      type,
      check("a text of the right form", matching((declared as { readonly pattern: string }).pattern)),
    ]),
  );
}

/** An object that has all of these fields and no others. */
export function objectOf(fields: Readonly<Record<string, TypeName>>, read: (type: TypeName) => Type): Type {
  return whole("an object", isObject, (value, path) => [
    ...Object.keys(value).map((key) =>
      Object.hasOwn(fields, key) ? null : { path: at(path, key), expected: "", value: value[key] },
    ),
    ...Object.keys(fields).map((key) => read(fields[key] ?? "").fault(value[key], at(path, key))),
  ]);
}

/** A kind of JSON value, with bounds if it is a number. */
function plain(type: string): Type {
  const [, kind = type, least, above, most] = /^(\w+) (.*?)(<?)\.\.(.*)$/.exec(type) ?? [];
  const [from, to] = [least ? Number(least) : -Infinity, most ? Number(most) : Infinity];
  const upTo = most ? ` and at most ${to}` : "";
  const range = above ? ` above ${from}${upTo}` : most ? ` from ${from} to ${to}` : ` of at least ${from}`;
  const isNumber = { number: Number.isFinite, integer: Number.isSafeInteger }[kind];
  return whole((KINDS[kind] ?? kind) + (type === kind ? "" : range), (value) => {
    if (isNumber !== undefined)
      return isNumber(value) && Number(value) <= to && (above ? Number(value) > from : Number(value) >= from);
    return kind === "object" ? isObject(value) : kind === "any" || typeof value === kind;
  });
}

/** A type whose values ``is`` accepts; then their parts are checked. */
function whole(
  expected: string,
  is: (value: unknown) => boolean,
  parts: (value: Readonly<Record<string, unknown>>, path: string) => readonly (Fault | null)[] = () => [],
): Type {
  return {
    expected,
    fault: (value, path) => {
      if (!is(value)) return { path, expected, value };
      return parts(value as Readonly<Record<string, unknown>>, path).find((fault) => fault !== null) ?? null;
    },
  };
}

/** The path of a part. */
export const at = (path: string, key: string): string => (path === "" ? key : `${path}.${key}`);

/** ``expected`` is for messages: "it must be ...". */
export const check = (expected: string, holds: (value: unknown) => boolean): FaultOf => whole(expected, holds).fault;

/** A type that names no others. */
export const typeOf = typeReader();
export const isA = (type: TypeName, value: unknown): boolean => typeOf(type).fault(value, "") === null;

/** A value as messages show it: its JSON, shortened. */
export function shown(value: unknown): string {
  try {
    if (value === undefined) return "missing";
    const json = (JSON.stringify(value) as string | undefined) ?? typeof value;
    return json.length > 80 ? `${json.slice(0, 80)}…` : json;
  } catch {
    return "a value with too many levels";
  }
}

// Checks values against types that Python declares: its generators write them as data, in a short form of JSON Schema.

/**
 * A name of a kind of JSON value or of a type in the table; "T?" is T or null, "T[]" a list, "T{}" an object whose
 * values are T, "=a|b" one of these texts.
 */
export type TypeName = string;

/** A type with bounds. */
export interface Bounded {
  readonly is: string;
  readonly minimum?: number;
  readonly exclusiveMinimum?: number;
  readonly maximum?: number;
  readonly pattern?: string;
  /** What messages say that a value must be. */
  readonly description?: string;
}

/** Types by their names. An object with fields has all of them and no others. */
export type Types = Readonly<Record<string, TypeName | Bounded | Readonly<Record<string, TypeName>>>>;

/** The first wrong value. ``expected`` completes "must be"; it is null for a key that is not declared. */
export interface Fault {
  readonly path: string;
  readonly expected: string | null;
  readonly value: unknown;
}

export type FaultOf = (value: unknown, path: string) => Fault | null;

/** The check of values by a table of types. ``own`` checks the types that no data states. */
export function faultFinder(
  types: Types,
  own: Readonly<Record<string, FaultOf>> = {},
): (type: TypeName, value: unknown, path?: string) => Fault | null {
  return function fault(type, value, path = ""): Fault | null {
    const wrong = (expected: string): Fault => ({ path, expected, value });
    const at = (key: string): string => (path === "" ? key : `${path}.${key}`);
    if (type.startsWith("=")) {
      const choices = type.slice(1).split("|");
      return choices.includes(value as string) ? null : wrong(choices.map((choice) => `"${choice}"`).join(" or "));
    }
    if (type.endsWith("?")) return value === null ? null : fault(type.slice(0, -1), value, path);
    if (type.endsWith("[]")) {
      if (!Array.isArray(value)) return wrong("a list");
      return first(value.entries(), ([index, item]) => fault(type.slice(0, -2), item, `${path}[${index}]`));
    }
    if (type.endsWith("{}")) {
      if (!isObject(value)) return wrong("an object");
      return first(Object.entries(value), ([key, item]) => fault(type.slice(0, -2), item, at(key)));
    }
    const check = own[type];
    if (check !== undefined) return check(value, path);
    const declared = types[type] ?? { is: type };
    if (typeof declared === "string") return fault(declared, value, path);
    if (isBounded(declared)) return holds(declared, value) ? null : wrong(described(declared));
    if (!isObject(value)) return wrong("an object");
    const unknown = Object.keys(value).find((key) => !Object.hasOwn(declared, key));
    if (unknown !== undefined) return { path: at(unknown), expected: null, value: value[unknown] };
    return first(Object.entries(declared), ([key, inner]) => fault(inner, value[key], at(key)));
  };
}

/** Whether a value has a type with bounds. */
export function holds({ is, pattern, ...bounds }: Bounded, value: unknown): boolean {
  switch (is) {
    case "string":
      return typeof value === "string" && (pattern === undefined || new RegExp(pattern).test(value));
    case "number":
    case "integer": {
      const { minimum = -Infinity, exclusiveMinimum = -Infinity, maximum = Infinity } = bounds;
      if (!(is === "integer" ? Number.isSafeInteger(value) : Number.isFinite(value))) return false;
      return (value as number) >= minimum && (value as number) > exclusiveMinimum && (value as number) <= maximum;
    }
    case "boolean":
      return typeof value === "boolean";
    case "object":
      return isObject(value);
    default:
      return true;
  }
}

/** What a value must be: "an integer from 1 to 20". */
export function described({ is, description, minimum, exclusiveMinimum: above, maximum }: Bounded): string {
  const name = description ?? NAMES[is] ?? is;
  if (above !== undefined) return `${name} above ${above}${maximum === undefined ? "" : ` and at most ${maximum}`}`;
  if (minimum === undefined) return name;
  return maximum === undefined ? `${name} of at least ${minimum}` : `${name} from ${minimum} to ${maximum}`;
}

const NAMES: Readonly<Record<string, string>> = {
  string: "a string",
  number: "a number",
  integer: "an integer",
  boolean: "true or false",
  object: "an object",
};

export const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

function isBounded(type: object): type is Bounded {
  return "is" in type;
}

function first<Item>(items: Iterable<Item>, fault: (item: Item) => Fault | null): Fault | null {
  for (const item of items) {
    const found = fault(item);
    if (found !== null) return found;
  }
  return null;
}

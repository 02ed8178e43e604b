// Combines JSON Schemas: resolves references, and merges allOf and sibling keywords. It also tests whether branches of
// oneOf exclude each other. A keyword that cannot be merged is refused.

import { RequestError } from "../../errors.js";

export type Schema = boolean | SchemaObject;
export type SchemaObject = Readonly<Record<string, unknown>>;

export type JsonType = "null" | "boolean" | "integer" | "number" | "string" | "array" | "object";

export const TYPES: readonly JsonType[] = ["null", "boolean", "integer", "number", "string", "array", "object"];

/** Keywords that do not restrict values. */
const ANNOTATIONS: ReadonlySet<string> = new Set([
  "$schema",
  "$id",
  "id",
  "$comment",
  "$anchor",
  "$defs",
  "definitions",
  "title",
  "description",
  "default",
  "examples",
  "example",
  // OpenAPI's: it names the property by which the branches of oneOf differ, whose constants are in them.
  "discriminator",
  "deprecated",
  "readOnly",
  "writeOnly",
  "contentMediaType",
  "contentEncoding",
]);

/** The keywords that apply to one type only. A schema without a type that has one of them means that type. */
export const KEYWORDS: Readonly<Record<"string" | "number" | "array" | "object", readonly string[]>> = {
  string: ["minLength", "maxLength", "pattern", "format"],
  number: ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"],
  array: ["items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"],
  object: [
    "properties",
    "required",
    "additionalProperties",
    "patternProperties",
    "propertyNames",
    "minProperties",
    "maxProperties",
  ],
};
const GENERAL = ["type", "enum", "const", "$ref", "allOf", "anyOf", "oneOf"];
const KNOWN: ReadonlySet<string> = new Set([...GENERAL, ...Object.values(KEYWORDS).flat()]);

export function isObject(value: unknown): value is SchemaObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** The schema without annotations. Throws RequestError for a keyword that is not supported. */
export function assertions(schema: SchemaObject, where: string): SchemaObject {
  const kept = Object.entries(schema).filter(([key]) => !ANNOTATIONS.has(key) && !key.startsWith("x-"));
  for (const [key] of kept) {
    if (KNOWN.has(key)) continue;
    const inner = key === "contentSchema" ? " (in pydantic, declare the type itself, without Json)" : "";
    throw new RequestError(
      `${where}: the keyword '${key}' is not supported; remove it or rewrite the schema without it${inner}`,
      { keyword: key },
    );
  }
  const { type, required = [], enum: values = [] } = schema;
  for (const [key, names] of [
    ["type", listOf(type)],
    ["required", required],
  ] as const) {
    if (!Array.isArray(names) || !names.every((name) => typeof name === "string"))
      throw new RequestError(`${where}.${key} must be a list of names`);
  }
  if (!Array.isArray(values)) throw new RequestError(`${where}.enum must be a list`);
  return Object.fromEntries(kept);
}

/** The schema that ``ref`` points to in ``root``. Throws RequestError if it is outside of the document or missing. */
export function resolve(root: Schema, ref: unknown, where: string): Schema {
  if (typeof ref !== "string" || !/^#(\/|$)/.test(ref)) {
    throw new RequestError(
      `${where}: $ref ${JSON.stringify(ref)} is not a path in the schema; put its target under $defs, and write ` +
        "'#/$defs/name'",
    );
  }
  let at: unknown = root;
  for (const part of ref.split("/").slice(1)) {
    const key = unescaped(part).replaceAll("~1", "/").replaceAll("~0", "~");
    at = isObject(at) && Object.hasOwn(at, key) ? at[key] : Array.isArray(at) ? at[Number(key)] : undefined;
  }
  if (typeof at !== "boolean" && !isObject(at))
    throw new RequestError(`${where}: $ref '${ref}' points to nothing in the schema`);
  return at;
}

/** The schema of the values that both allow. Throws RequestError for keywords that cannot be merged. */
export function merge(left: Schema, right: Schema, where: string): Schema {
  if (left === true || right === false) return right;
  if (right === true || left === false) return left;
  const merged: Record<string, unknown> = { ...left };
  for (const [key, value] of Object.entries(right)) {
    merged[key] = Object.hasOwn(left, key) ? mergeKeyword(key, left[key], value, where) : value;
  }
  requireOpen(left, right, where);
  requireOpen(right, left, where);
  return merged;
}

/** Whether no value is valid in both. Tests types, constants, and required properties with different constants only. */
export function exclusive(left: Schema, right: Schema, expand: (schema: Schema) => Schema): boolean {
  const [a, b] = [expand(left), expand(right)];
  if (typeof a === "boolean" || typeof b === "boolean") return a === false || b === false;
  const [constantsA, constantsB] = [constantsOf(a), constantsOf(b)];
  if (constantsA !== null && constantsB !== null) return !constantsA.some((value) => constantsB.includes(value));
  const [typesA, typesB] = [typesOf(a), typesOf(b)];
  const numeric = (type: JsonType): JsonType => (type === "integer" ? "number" : type);
  const shared = typesA.filter((type) => typesB.some((other) => numeric(other) === numeric(type)));
  if (shared.length === 0) return true;
  if (shared.some((type) => type !== "object")) return false;
  const required = listOf(a.required).filter((name) => listOf(b.required).includes(name));
  return required.some((name) => {
    const [first, second] = [propertyOf(a, name), propertyOf(b, name)];
    return first !== undefined && second !== undefined && exclusive(first, second, expand);
  });
}

/** The types that a schema's own keywords allow; all types if they do not restrict them. */
export function typesOf(schema: SchemaObject): readonly JsonType[] {
  if (schema.type !== undefined) return listOf(schema.type) as readonly JsonType[];
  const constants = constantsOf(schema);
  if (constants !== null) return [...new Set(constants.map((text) => typeOfValue(JSON.parse(text))))];
  const meant = (Object.keys(KEYWORDS) as (keyof typeof KEYWORDS)[]).filter((type) =>
    KEYWORDS[type].some((key) => Object.hasOwn(schema, key)),
  );
  return meant.length > 0 ? meant : TYPES;
}

export function typeOfValue(value: unknown): JsonType {
  if (value === null) return "null";
  if (Array.isArray(value)) return "array";
  if (typeof value === "number") return Number.isInteger(value) ? "integer" : "number";
  return typeof value as JsonType;
}

/** The values of const and enum as JSON, or null if the schema has neither. */
export function constantsOf(schema: SchemaObject): readonly string[] | null {
  const values = Object.hasOwn(schema, "const")
    ? [schema.const]
    : Array.isArray(schema.enum)
      ? (schema.enum as unknown[])
      : null;
  return values === null ? null : values.map((value) => JSON.stringify(value));
}

/** The values that const, enum and type allow. Throws RequestError for any other keyword. */
export function allowedConstants(schema: SchemaObject, where: string): readonly unknown[] {
  const { type, const: constant, enum: values, ...others } = schema;
  const [other] = Object.keys(others);
  if (other !== undefined)
    throw new RequestError(`${where}: '${other}' is beside const or enum; list only the values that it allows`, {
      keyword: other,
    });
  const all = [constant, ...((values ?? []) as readonly unknown[])];
  const inexact = all.find((value) => Number.isInteger(value) && !Number.isSafeInteger(value));
  if (inexact !== undefined)
    throw new RequestError(`${where}: the integer ${JSON.stringify(inexact)} is beyond 2^53; declare it as a string`);
  const types = listOf(type);
  const listed = (values as readonly unknown[] | undefined)?.map((value) => JSON.stringify(value));
  return (Object.hasOwn(schema, "const") ? [constant] : (values as readonly unknown[])).filter((value) => {
    const valueType = typeOfValue(value);
    const ofType = type === undefined || types.includes(valueType);
    const isListed = listed === undefined || listed.includes(JSON.stringify(value));
    return isListed && (ofType || (valueType === "integer" && types.includes("number")));
  });
}

export function listOf(value: unknown): readonly unknown[] {
  return value === undefined ? [] : Array.isArray(value) ? (value as unknown[]) : [value];
}

function propertyOf(schema: SchemaObject, name: unknown): Schema | undefined {
  return isObject(schema.properties) && typeof name === "string"
    ? (schema.properties[name] as Schema | undefined)
    : undefined;
}

function unescaped(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function mergeKeyword(key: string, left: unknown, right: unknown, where: string): unknown {
  if (JSON.stringify(left) === JSON.stringify(right)) return left;
  if (/^(min|exclusiveMin)/.test(key)) return Math.max(left as number, right as number);
  if (/^(max|exclusiveMax)/.test(key)) return Math.min(left as number, right as number);
  if (key === "required") return [...new Set([...listOf(left), ...listOf(right)])];
  if (key === "type") {
    const types = listOf(left).filter((type) =>
      listOf(right).some((other) => other === type || (type === "integer" && other === "number")),
    );
    const narrowed = listOf(right).filter((type) => type === "integer" && listOf(left).includes("number"));
    return [...new Set([...types, ...narrowed])];
  }
  if (key === "properties" && isObject(left) && isObject(right)) {
    const both = { ...left, ...right };
    for (const name of Object.keys(left)) {
      if (Object.hasOwn(right, name) && JSON.stringify(left[name]) !== JSON.stringify(right[name]))
        both[name] = { allOf: [left[name], right[name]] };
    }
    return both;
  }
  if (key === "enum")
    return listOf(left).filter((value) =>
      listOf(right).some((other) => JSON.stringify(other) === JSON.stringify(value)),
    );
  throw new RequestError(`${where}: '${key}' has two different values for one value of the answer; give it once`, {
    keyword: key,
  });
}

/** A schema without further properties forbids those of the other, which a merged schema would allow. */
function requireOpen(closed: SchemaObject, other: SchemaObject, where: string): void {
  if (closed.additionalProperties === undefined || closed.additionalProperties === true) return;
  const names = isObject(closed.properties) ? Object.keys(closed.properties) : [];
  const more = isObject(other.properties) ? Object.keys(other.properties).filter((name) => !names.includes(name)) : [];
  if (more.length > 0) {
    throw new RequestError(
      `${where}: additionalProperties forbids '${more.join("', '")}', which is beside it; put all properties ` +
        "into one schema",
    );
  }
}

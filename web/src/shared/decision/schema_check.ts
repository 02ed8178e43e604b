// Checks a value by the policy's schema, a compact form of JSON Schema, and adds all defaults.

import { RequestError } from "../../errors.js";
import type { TypeName } from "../declared.js";
import { at, typeOf } from "../declared.js";

export { isObject } from "../declared.js";

/**
 * As in JSON Schema, without the types of lists and objects. A property that has no default and is not nullable is
 * required; others are unknown.
 */
export interface Schema {
  readonly type?: TypeName;
  /** Null is allowed, and the default if there is no other. */
  readonly nullable?: boolean;
  readonly minLength?: number;
  readonly maxLength?: number;
  readonly minItems?: number;
  readonly maxItems?: number;
  readonly items?: Schema;
  readonly properties?: Readonly<Record<string, Schema>>;
  /** For an object, the properties that differ from their own defaults. */
  readonly default?: unknown;
}

/** Throws RequestError with the code "bad_policy" for the first value that does not match the schema. */
export function readValue(schema: Schema, value: unknown, path = ""): unknown {
  const { nullable, properties, items, minLength = 0, maxLength = Infinity } = schema;
  const { type = properties ? "object" : items ? "any[]" : "any" } = schema;
  if (nullable === true && value === null) return null;
  const fault = typeOf(type).fault(value, path);
  if (fault !== null) throw badPolicy(path, `it must be ${fault.expected}`);
  if (properties) return object(properties, value as Readonly<Record<string, unknown>>, path);
  if (items) return array(schema, items, value as readonly unknown[], path);
  const length = typeof value === "string" ? Array.from(value).length : minLength;
  if (length < minLength || length > maxLength)
    throw badPolicy(path, `it must have from ${minLength} to ${maxLength} characters`);
  return value;
}

export function badPolicy(path: string, problem: string): RequestError {
  return new RequestError(`the policy: ${path === "" ? "" : `${path}: `}${problem}`, {
    code: "bad_policy",
    param: path,
  });
}

function object(
  properties: NonNullable<Schema["properties"]>,
  value: Readonly<Record<string, unknown>>,
  path: string,
): unknown {
  const defaultOf = ({ nullable, default: other = nullable === true ? null : undefined }: Schema): unknown => other;
  for (const [key, schema] of Object.entries(properties))
    if (value[key] === undefined && defaultOf(schema) === undefined) throw badPolicy(at(path, key), "it is missing");
  const unknown = Object.keys(value).find((key) => !Object.hasOwn(properties, key));
  if (unknown !== undefined)
    throw badPolicy(at(path, unknown), `unknown key; the keys are ${Object.keys(properties).join(", ")}`);
  return Object.fromEntries(
    Object.entries(properties).map(([key, schema]) => {
      const given = value[key] === undefined ? defaultOf(schema) : value[key];
      return [key, readValue(schema, given, at(path, key))];
    }),
  );
}

function array(
  { minItems = 0, maxItems = Infinity }: Schema,
  items: Schema,
  value: readonly unknown[],
  path: string,
): unknown {
  if (value.length < minItems || value.length > maxItems)
    throw badPolicy(path, `it must have from ${minItems} to ${maxItems} items`);
  return value.map((item, index) => readValue(items, item, `${path}[${index}]`));
}

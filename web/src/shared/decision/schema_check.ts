// Checks a value by the policy's schema, a compact form of JSON Schema, and adds all defaults.

import { RequestError } from "../../errors.js";
import type { TypeName } from "../declared.js";
import { isObject, typeOf } from "../declared.js";

export { isObject } from "../declared.js";

/** As in JSON Schema. A property that has no default and is not nullable is required; others are unknown. */
export interface Schema {
  /** "object", "array", or the name of a type. */
  readonly type?: TypeName;
  /** Null is allowed, and the default if there is no other. */
  readonly nullable?: boolean;
  readonly minLength?: number;
  readonly maxLength?: number;
  readonly minItems?: number;
  readonly maxItems?: number;
  readonly items?: Schema | TypeName;
  readonly properties?: Readonly<Record<string, Schema | TypeName>>;
  /** For an object, the properties that differ from their own defaults. */
  readonly default?: unknown;
}

/** Throws RequestError with the code "bad_policy" for the first value that does not match the schema. */
export function readValue(schema: Schema | TypeName, value: unknown, path = ""): unknown {
  if (typeof schema === "string") return readValue({ type: schema }, value, path);
  if (schema.nullable === true && value === null) return null;
  const { type = "any", minLength = 0, maxLength = Infinity } = schema;
  if (type === "object") return object(schema, value, path);
  if (type === "array") return array(schema, value, path);
  const fault = typeOf(type).fault(value, path);
  if (fault !== null) throw badPolicy(path, `it must be ${fault.expected ?? ""}`);
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

function object({ properties = {} }: Schema, value: unknown, path: string): unknown {
  if (!isObject(value)) throw badPolicy(path, "it must be an object");
  const at = (key: string): string => (path === "" ? key : `${path}.${key}`);
  const defaultOf = (schema: Schema | TypeName): unknown =>
    typeof schema === "string" ? undefined : (schema.default ?? (schema.nullable === true ? null : undefined));
  for (const [key, schema] of Object.entries(properties))
    if (value[key] === undefined && defaultOf(schema) === undefined) throw badPolicy(at(key), "it is missing");
  const unknown = Object.keys(value).find((key) => !Object.hasOwn(properties, key));
  if (unknown !== undefined)
    throw badPolicy(at(unknown), `unknown key; the keys are ${Object.keys(properties).join(", ")}`);
  return Object.fromEntries(
    Object.entries(properties).map(([key, schema]) => {
      const given = value[key] === undefined ? defaultOf(schema) : value[key];
      return [key, readValue(schema, given, at(key))];
    }),
  );
}

function array({ items = "any", minItems = 0, maxItems = Infinity }: Schema, value: unknown, path: string): unknown {
  if (!Array.isArray(value)) throw badPolicy(path, "it must be a list");
  if (value.length < minItems || value.length > maxItems)
    throw badPolicy(path, `it must have from ${minItems} to ${maxItems} items`);
  return value.map((item: unknown, index) => readValue(items, item, `${path}[${index}]`));
}

// Checks a value by the policy's schema, a compact form of JSON Schema, and adds all defaults.

import { RequestError } from "../../errors.js";

/** As in JSON Schema. A property that has no default and is not nullable is required; others are unknown. */
export interface Schema {
  readonly type?: string;
  /** Null is allowed, and the default if there is no other. */
  readonly nullable?: boolean;
  readonly const?: number;
  readonly enum?: readonly string[];
  readonly minimum?: number;
  readonly maximum?: number;
  readonly exclusiveMinimum?: number;
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
  if (schema.nullable === true && value === null) return null;
  switch (schema.type ?? "any") {
    case "object":
      return object(schema, value, path);
    case "array":
      return array(schema, value, path);
    case "string":
      return text(schema, value, path);
    case "integer":
    case "number":
      return number(schema, value, path);
    case "boolean":
      if (typeof value !== "boolean") throw badPolicy(path, "it must be true or false");
      return value;
    default:
      return value;
  }
}

export function badPolicy(path: string, problem: string): RequestError {
  return new RequestError(`the policy: ${path === "" ? "" : `${path}: `}${problem}`, {
    code: "bad_policy",
    param: path,
  });
}

export function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function object({ properties = {} }: Schema, value: unknown, path: string): unknown {
  if (!isObject(value)) throw badPolicy(path, "it must be an object");
  const at = (key: string): string => (path === "" ? key : `${path}.${key}`);
  const defaultOf = ({ nullable, default: other = nullable === true ? null : undefined }: Schema): unknown => other;
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

function array({ items = {}, minItems = 0, maxItems = Infinity }: Schema, value: unknown, path: string): unknown {
  if (!Array.isArray(value)) throw badPolicy(path, "it must be a list");
  if (value.length < minItems || value.length > maxItems) {
    throw badPolicy(
      path,
      minItems > 0 ? `it must have from ${minItems} to ${maxItems} items` : `it must have at most ${maxItems} items`,
    );
  }
  return value.map((item: unknown, index) => readValue(items, item, `${path}[${index}]`));
}

function text({ enum: values, minLength = 0, maxLength = Infinity }: Schema, value: unknown, path: string): string {
  if (typeof value !== "string") throw badPolicy(path, "it must be a text");
  if (values?.includes(value) === false) throw badPolicy(path, `it must be one of ${values.join(", ")}`);
  const length = Array.from(value).length;
  if (length < minLength || length > maxLength)
    throw badPolicy(path, `it must have from ${minLength} to ${maxLength} characters`);
  return value;
}

function number(schema: Schema, value: unknown, path: string): number {
  const { type, const: only, minimum = -Infinity, maximum = Infinity, exclusiveMinimum = -Infinity } = schema;
  if (typeof value !== "number" || !Number.isFinite(value)) throw badPolicy(path, "it must be a number");
  if (type === "integer" && !Number.isInteger(value)) throw badPolicy(path, "it must be a whole number");
  if (only !== undefined && value !== only) throw badPolicy(path, `it must be ${only}`);
  if (value < minimum || value > maximum || value <= exclusiveMinimum) {
    const least = exclusiveMinimum > -Infinity ? `above ${exclusiveMinimum}` : `at least ${minimum}`;
    throw badPolicy(path, `it must be ${least} and at most ${maximum}`);
  }
  return value;
}

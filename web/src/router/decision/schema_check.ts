// Checks a value by the part of JSON Schema that the policy's schema uses, and adds all defaults.

import { RequestError } from "../../errors.js";

export interface Schema {
  readonly $defs?: Readonly<Record<string, Schema>>;
  readonly $ref?: string;
  /** A schema, or null. */
  readonly anyOf?: readonly Schema[];
  readonly type?: string;
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
  readonly required?: readonly string[];
  readonly additionalProperties?: boolean;
  readonly default?: unknown;
}

/** Throws RequestError with the code "bad_policy" for the first value that does not match the schema. */
export function readValue(root: Schema, value: unknown): unknown {
  return new Reader(root).read(root, value, "");
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

class Reader {
  constructor(private readonly root: Schema) {}

  read(schema: Schema, value: unknown, path: string): unknown {
    if (schema.$ref !== undefined) {
      const name = schema.$ref.replace("#/$defs/", "");
      return this.read(this.root.$defs?.[name] ?? {}, value, path);
    }
    if (schema.anyOf !== undefined) {
      const branch = schema.anyOf.find(({ type }) => (type === "null") === (value === null));
      return branch === undefined ? value : this.read(branch, value, path);
    }
    switch (schema.type ?? "any") {
      case "object":
        return this.object(schema, value, path);
      case "array":
        return this.array(schema, value, path);
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

  private object({ properties = {}, required = [] }: Schema, value: unknown, path: string): unknown {
    if (!isObject(value)) throw badPolicy(path, "it must be an object");
    const at = (key: string): string => (path === "" ? key : `${path}.${key}`);
    for (const key of required) if (value[key] === undefined) throw badPolicy(at(key), "it is missing");
    const unknown = Object.keys(value).find((key) => !Object.hasOwn(properties, key));
    if (unknown !== undefined)
      throw badPolicy(at(unknown), `unknown key; the keys are ${Object.keys(properties).join(", ")}`);
    return Object.fromEntries(
      Object.entries(properties).map(([key, schema]) => [
        key,
        this.read(schema, value[key] ?? nullOrDefault(value, key, schema), at(key)),
      ]),
    );
  }

  private array({ items = {}, minItems = 0, maxItems = Infinity }: Schema, value: unknown, path: string): unknown {
    if (!Array.isArray(value)) throw badPolicy(path, "it must be a list");
    if (value.length < minItems || value.length > maxItems) {
      throw badPolicy(
        path,
        minItems > 0 ? `it must have from ${minItems} to ${maxItems} items` : `it must have at most ${maxItems} items`,
      );
    }
    return value.map((item: unknown, index) => this.read(items, item, `${path}[${index}]`));
  }
}

/** Null for null, the default for a missing key. */
function nullOrDefault(value: Readonly<Record<string, unknown>>, key: string, schema: Schema): unknown {
  return value[key] === null ? null : schema.default;
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

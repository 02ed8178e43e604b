// What JSON Schema says of a value, as far as the policy's schema says anything. A value of anything flows in, the same with all defaults flows out.

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

/** Throws RequestError with the code "bad_policy" for the first place where the value is not as the schema says. */
export function readValue(root: Schema, value: unknown): unknown {
  return new Reader(root).read(root, value, "");
}

export function badPolicy(place: string, problem: string): RequestError {
  return new RequestError(`the policy: ${place === "" ? "" : `${place}: `}${problem}`, {
    code: "bad_policy",
    param: place,
  });
}

export function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

class Reader {
  constructor(private readonly root: Schema) {}

  read(schema: Schema, value: unknown, place: string): unknown {
    if (schema.$ref !== undefined) {
      const name = schema.$ref.replace("#/$defs/", "");
      return this.read(this.root.$defs?.[name] ?? {}, value, place);
    }
    if (schema.anyOf !== undefined) {
      const branch = schema.anyOf.find(({ type }) => (type === "null") === (value === null));
      return branch === undefined ? value : this.read(branch, value, place);
    }
    switch (schema.type ?? "any") {
      case "object":
        return this.object(schema, value, place);
      case "array":
        return this.array(schema, value, place);
      case "string":
        return text(schema, value, place);
      case "integer":
      case "number":
        return number(schema, value, place);
      case "boolean":
        if (typeof value !== "boolean") throw badPolicy(place, "it must be true or false");
        return value;
      default:
        return value;
    }
  }

  private object({ properties = {}, required = [] }: Schema, value: unknown, place: string): unknown {
    if (!isObject(value)) throw badPolicy(place, "it must be an object");
    const at = (key: string): string => (place === "" ? key : `${place}.${key}`);
    for (const key of required) if (value[key] === undefined) throw badPolicy(at(key), "it is missing");
    const unknown = Object.keys(value).find((key) => !Object.hasOwn(properties, key));
    if (unknown !== undefined)
      throw badPolicy(at(unknown), `unknown key; the keys are ${Object.keys(properties).join(", ")}`);
    return Object.fromEntries(
      Object.entries(properties).map(([key, schema]) => [
        key,
        this.read(schema, value[key] ?? given(value, key, schema), at(key)),
      ]),
    );
  }

  private array({ items = {}, minItems = 0, maxItems = Infinity }: Schema, value: unknown, place: string): unknown {
    if (!Array.isArray(value)) throw badPolicy(place, "it must be a list");
    if (value.length < minItems || value.length > maxItems) {
      throw badPolicy(
        place,
        minItems > 0 ? `it must have from ${minItems} to ${maxItems} items` : `it must have at most ${maxItems} items`,
      );
    }
    return value.map((item: unknown, index) => this.read(items, item, `${place}[${index}]`));
  }
}

/** Null where it is null, the default where it is not there. */
function given(value: Readonly<Record<string, unknown>>, key: string, schema: Schema): unknown {
  return value[key] === null ? null : schema.default;
}

function text({ enum: values, minLength = 0, maxLength = Infinity }: Schema, value: unknown, place: string): string {
  if (typeof value !== "string") throw badPolicy(place, "it must be a text");
  if (values?.includes(value) === false) throw badPolicy(place, `it must be one of ${values.join(", ")}`);
  const length = Array.from(value).length;
  if (length < minLength || length > maxLength)
    throw badPolicy(place, `it must have from ${minLength} to ${maxLength} characters`);
  return value;
}

function number(schema: Schema, value: unknown, place: string): number {
  const { type, const: only, minimum = -Infinity, maximum = Infinity, exclusiveMinimum = -Infinity } = schema;
  if (typeof value !== "number" || !Number.isFinite(value)) throw badPolicy(place, "it must be a number");
  if (type === "integer" && !Number.isInteger(value)) throw badPolicy(place, "it must be a whole number");
  if (only !== undefined && value !== only) throw badPolicy(place, `it must be ${only}`);
  if (value < minimum || value > maximum || value <= exclusiveMinimum) {
    throw badPolicy(
      place,
      `it must be ${exclusiveMinimum > -Infinity ? `above ${exclusiveMinimum}` : `at least ${minimum}`} and at most ${maximum}`,
    );
  }
  return value;
}

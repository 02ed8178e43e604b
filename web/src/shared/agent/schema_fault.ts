// Whether a value fits a JSON Schema, for the arguments of tool calls, which a model may have written without a grammar.
//
// The keywords are those that grammars enforce; a schema with others is refused, because nothing would enforce them.
// `format` is an annotation, as JSON Schema's core has it: only grammars restrict texts by it.

import { RequestError } from "../../errors.js";
import { shown } from "../declared.js";
import type { Language } from "../grammar/automaton.js";
import { isImplied } from "../grammar/formats.js";
import { parseRegex } from "../grammar/regex.js";
import type { JsonType, Schema, SchemaObject } from "../grammar/schema_merge.js";
import { TYPES, assertions, isObject, listOf, resolve, typeOfValue } from "../grammar/schema_merge.js";

/** More levels than a useful value has, and fewer than the stack holds. */
const MAX_DEPTH = 100;
const ONE_SCHEMA = ["additionalProperties", "propertyNames", "additionalItems"];
const SCHEMAS = ["allOf", "anyOf", "oneOf", "prefixItems"];
const NAMED_SCHEMAS = ["properties", "patternProperties"];
const COUNTS = ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"];
const NUMBERS = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];

/** Throws RequestError for a schema that is wrong, or that grammars cannot enforce; ``where`` names it. */
export function requireSchema(root: unknown, where: string): void {
  const seen = new Set<unknown>();
  const visit = (schema: unknown, at: string, depth: number): void => {
    if (typeof schema === "boolean" || seen.has(schema)) return;
    if (!isObject(schema)) throw new RequestError(`${at} must be a schema: an object or a boolean`);
    if (depth > MAX_DEPTH) throw new RequestError(`${at}: is nested too deep`);
    seen.add(schema);
    const kept = assertions(schema, at);
    const wrong = listOf(kept.type).find((type) => !TYPES.includes(type as JsonType));
    if (wrong !== undefined)
      throw new RequestError(`${at}: type ${shown(wrong)} is not one of ${TYPES.join(", ")}`, { keyword: "type" });
    if (kept.$ref !== undefined) visit(resolve(root as Schema, kept.$ref, at), `${at}.$ref`, depth + 1);
    for (const key of [...COUNTS, ...NUMBERS]) {
      const number = kept[key];
      const isRight = COUNTS.includes(key) ? Number.isInteger(number) && Number(number) >= 0 : Number.isFinite(number);
      if (number !== undefined && !isRight) throw new RequestError(`${at}.${key} must be a number`, { keyword: key });
    }
    if (kept.multipleOf !== undefined && Number(kept.multipleOf) <= 0)
      throw new RequestError(`${at}.multipleOf must be above 0`, { keyword: "multipleOf" });
    patternOf(kept, at);
    const { items } = kept;
    const lists = Array.isArray(items) ? [...SCHEMAS, "items"] : SCHEMAS;
    for (const key of Array.isArray(items) ? ONE_SCHEMA : [...ONE_SCHEMA, "items"])
      if (kept[key] !== undefined) visit(kept[key], `${at}.${key}`, depth + 1);
    for (const key of lists) {
      const parts = kept[key];
      if (parts === undefined) continue;
      if (!Array.isArray(parts)) throw new RequestError(`${at}.${key} must be a list`, { keyword: key });
      parts.forEach((part, index) => {
        visit(part, `${at}.${key}[${index}]`, depth + 1);
      });
    }
    for (const key of NAMED_SCHEMAS) {
      const parts = kept[key];
      if (parts === undefined) continue;
      if (!isObject(parts)) throw new RequestError(`${at}.${key} must be an object`, { keyword: key });
      for (const [name, part] of Object.entries(parts)) {
        if (key === "patternProperties") parseRegex(name, `${at}.${key}`, true);
        visit(part, `${at}.${key}.${name}`, depth + 1);
      }
    }
  };
  visit(root, where, 0);
}

/**
 * What is wrong with ``value``, such as "level is 130, it must be at most 100"; null if it fits the schema. ``path``
 * names the value. `requireSchema` has accepted the schema.
 */
export function schemaFault(root: Schema, value: unknown, path: string): string | null {
  return new Reader(root).fault(root, value, path, 0);
}

class Reader {
  constructor(private readonly root: Schema) {}

  fault(schema: unknown, value: unknown, path: string, depth: number): string | null {
    if (schema === true) return null;
    if (schema === false) return `${path} must not be given`;
    if (depth > MAX_DEPTH) return `${path} is nested too deep`;
    const kept = assertions(schema as SchemaObject, path);
    const of = (inner: unknown): string | null => this.fault(inner, value, path, depth + 1);
    return (
      (kept.$ref === undefined ? null : of(resolve(this.root, kept.$ref, path))) ??
      first(listOf(kept.allOf), of) ??
      this.branches(kept, path, of) ??
      typeFault(kept, value, path) ??
      this.parts(kept, value, path, depth)
    );
  }

  private branches(
    { anyOf, oneOf }: SchemaObject,
    path: string,
    of: (schema: unknown) => string | null,
  ): string | null {
    for (const branches of [anyOf, oneOf]) {
      if (branches === undefined) continue;
      const faults = listOf(branches).map(of);
      const fitting = faults.filter((fault) => fault === null).length;
      if (fitting === 0)
        return faults.length === 1 ? (faults[0] ?? null) : `${path} fits no alternative (${faults.join("; ")})`;
      if (branches === oneOf && fitting > 1) return `${path} fits several alternatives, it must fit one`;
    }
    return null;
  }

  private parts(schema: SchemaObject, value: unknown, path: string, depth: number): string | null {
    if (typeof value === "string") return stringFault(schema, value, path);
    if (typeof value === "number") return numberFault(schema, value, path);
    if (Array.isArray(value)) return this.arrayFault(schema, value, path, depth);
    return isObject(value) ? this.objectFault(schema, value, path, depth) : null;
  }

  private arrayFault(schema: SchemaObject, value: readonly unknown[], path: string, depth: number): string | null {
    const count = countFault(value.length, schema.minItems, schema.maxItems, `${path} has ${value.length} items`);
    if (count !== null) return count;
    // Before draft 2020-12, `items` was the list of leading items and `additionalItems` described the others.
    const isList = Array.isArray(schema.items);
    const leading = listOf(schema.prefixItems ?? (isList ? schema.items : []));
    const following = isList ? schema.additionalItems : schema.items;
    if (schema.uniqueItems === true && new Set(value.map(canonical)).size < value.length)
      return `${path} has an item twice`;
    return first(value, (item, index) =>
      this.fault(leading[index] ?? following ?? true, item, `${path}[${index}]`, depth + 1),
    );
  }

  private objectFault(schema: SchemaObject, value: SchemaObject, path: string, depth: number): string | null {
    const keys = Object.keys(value);
    const missing = (listOf(schema.required) as readonly string[]).find((name) => !Object.hasOwn(value, name));
    if (missing !== undefined) return `${at(path, missing)} is missing`;
    const count = countFault(
      keys.length,
      schema.minProperties,
      schema.maxProperties,
      `${path} has ${keys.length} fields`,
    );
    if (count !== null) return count;
    const { properties = {}, patternProperties = {}, additionalProperties = true, propertyNames = true } = schema;
    return first(keys, (key) => {
      const inner = at(path, key);
      const name = this.fault(propertyNames, key, `the name '${key}'`, depth + 1);
      if (name !== null) return name;
      const named = Object.hasOwn(properties as object, key) ? [(properties as SchemaObject)[key]] : [];
      const matched = Object.entries(patternProperties as SchemaObject).flatMap(([pattern, part]) =>
        matches(parseRegex(pattern, path, true), key) ? [part] : [],
      );
      const schemas = [...named, ...matched];
      if (schemas.length === 0 && additionalProperties === false) {
        const known = Object.keys(properties as object).join(", ");
        return `${inner} is unknown${known === "" ? "" : `; the fields are ${known}`}`;
      }
      return first(schemas.length > 0 ? schemas : [additionalProperties], (part) =>
        this.fault(part, value[key], inner, depth + 1),
      );
    });
  }
}

/** The JSON of a value with sorted keys, so that equal values have one text. */
export function canonical(value: unknown): string {
  return JSON.stringify(value, (_, inner: unknown) =>
    isObject(inner) ? Object.fromEntries(Object.entries(inner).sort(([a], [b]) => (a < b ? -1 : 1))) : inner,
  );
}

function typeFault(schema: SchemaObject, value: unknown, path: string): string | null {
  const is = (wanted: readonly unknown[]): string =>
    `${path} is ${shown(value)}, it must be ${wanted.length > 1 ? "one of " : ""}${wanted.map(shown).join(", ")}`;
  if (Object.hasOwn(schema, "const") && canonical(schema.const) !== canonical(value)) return is([schema.const]);
  if (schema.enum !== undefined && !listOf(schema.enum).some((each) => canonical(each) === canonical(value)))
    return is(listOf(schema.enum));
  if (schema.type === undefined) return null;
  const type = typeOfValue(value);
  const types = listOf(schema.type);
  const fits = types.includes(type) || (type === "integer" && types.includes("number"));
  return fits ? null : `${path} is ${shown(value)}, it must be of type ${types.join(" or ")}`;
}

function stringFault(schema: SchemaObject, value: string, path: string): string | null {
  const length = Array.from(value).length;
  const count = countFault(length, schema.minLength, schema.maxLength, `${path} has ${length} characters`);
  if (count !== null) return count;
  const pattern = patternOf(schema, path);
  return pattern === null || matches(pattern, value)
    ? null
    : `${path} is ${shown(value)}, it must match the pattern ${String(schema.pattern)}`;
}

/** Null for a pattern that only says what the format says, with lookahead. */
function patternOf(schema: SchemaObject, where: string): Language | null {
  const { pattern, format } = schema;
  if (pattern === undefined || isImplied(format, pattern)) return null;
  if (typeof pattern !== "string") throw new RequestError(`${where}.pattern must be a string`, { keyword: "pattern" });
  return parseRegex(pattern, `${where}.pattern`, true);
}

function numberFault(schema: SchemaObject, value: number, path: string): string | null {
  const { minimum, maximum, exclusiveMinimum: above, exclusiveMaximum: below, multipleOf: step } = schema;
  const bounds: readonly (readonly [unknown, boolean, string])[] = [
    [minimum, value < Number(minimum), "at least"],
    [maximum, value > Number(maximum), "at most"],
    [above, value <= Number(above), "above"],
    [below, value >= Number(below), "below"],
  ];
  const crossed = bounds.find(([bound, isCrossed]) => bound !== undefined && isCrossed);
  if (crossed !== undefined) return `${path} is ${value}, it must be ${crossed[2]} ${String(crossed[0])}`;
  const quotient = step === undefined ? 0 : value / Number(step);
  // A quotient of decimals is off by a few units in its last place.
  const isMultiple = Math.abs(quotient - Math.round(quotient)) <= 1e-9 * Math.max(1, Math.abs(quotient));
  return isMultiple ? null : `${path} is ${value}, it must be a multiple of ${String(step)}`;
}

function countFault(count: number, least: unknown, most: unknown, has: string): string | null {
  if (count < Number(least ?? 0)) return `${has}, it must have at least ${Number(least)}`;
  return count > Number(most ?? Infinity) ? `${has}, it must have at most ${Number(most)}` : null;
}

/** Whether the whole text is in the language, in a time that is polynomial in its length. */
function matches(language: Language, text: string): boolean {
  const points = Array.from(text, (character) => character.codePointAt(0) ?? 0);
  /** The positions at which a text of ``part`` may end that begins at one of ``starts``. */
  const ends = (part: Language, starts: ReadonlySet<number>): ReadonlySet<number> => {
    switch (part.kind) {
      case "set":
        return new Set(
          [...starts].flatMap((start) => {
            const point = points[start];
            const isIn = point !== undefined && part.set.some(([low, high]) => low <= point && point <= high);
            return isIn ? [start + 1] : [];
          }),
        );
      case "sequence":
        return part.parts.reduce((reached, each) => ends(each, reached), starts);
      case "choice":
        return new Set(part.parts.flatMap((each) => [...ends(each, starts)]));
      case "repeat": {
        const all = new Set(part.min === 0 ? starts : []);
        let reached = starts;
        for (let times = 1; times <= part.max && reached.size > 0; times++) {
          const next = ends(part.of, reached);
          // From the minimum on, only positions that are new lead to others.
          reached = times < part.min ? next : new Set([...next].filter((position) => !all.has(position)));
          if (times >= part.min) for (const position of reached) all.add(position);
          if (times > points.length && times >= part.min) break;
        }
        return all;
      }
      case "multiple":
        throw new Error("a pattern has no multiples");
    }
  };
  return ends(language, new Set([0])).has(points.length);
}

function first<T>(values: readonly T[], of: (value: T, index: number) => string | null): string | null {
  for (const [index, value] of values.entries()) {
    const fault = of(value, index);
    if (fault !== null) return fault;
  }
  return null;
}

const at = (path: string, key: string): string => (path === "" ? key : `${path}.${key}`);

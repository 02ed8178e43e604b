// Writes a JSON Schema as grammar rules that allow only valid JSON, and refuses a schema that the rules cannot enforce.
// The rules allow a part of what the schema allows: properties come in the schema's order, and a schema that names
// properties allows no others.

import { RequestError, messageOf } from "../../errors.js";
import { languageRule, literalLanguage } from "./automaton.js";
import type { RuleBook } from "./ebnf.js";
import { literal, utf8Length } from "./ebnf.js";
import { multiples, unsupportedMultiple } from "./multiples.js";
import { integerRange, numberRange } from "./number_range.js";
import { parseRegex } from "./regex.js";
import { arrayExpression } from "./schema_arrays.js";
import type { JsonType, Schema, SchemaObject } from "./schema_merge.js";
import {
  TYPES,
  allowedConstants,
  assertions,
  constantsOf,
  exclusive,
  isObject,
  merge,
  resolve,
  typesOf,
} from "./schema_merge.js";
import { ObjectRules } from "./schema_objects.js";
import { checkedList, choice, space } from "./schema_parts.js";
import type { Strings } from "./schema_strings.js";
import { StringRules } from "./schema_strings.js";

// Deeper than any useful schema.
const MAX_DEPTH = 100;
// A double holds this number of digits exactly.
const INTEGER = "-?(0|[1-9]\\d{0,14})";
const DECIMAL = `${INTEGER}(\\.\\d{1,15})?`;
const NUMBER = `${DECIMAL}([eE][+-]?\\d{1,2})?`;

/** Returns the schema that ``schema`` is, or that it is the text of. Throws RequestError if it is not a schema. */
export function parseSchema(schema: unknown): Schema {
  let value = schema;
  if (typeof schema === "string") {
    try {
      value = JSON.parse(schema);
    } catch (error) {
      throw new RequestError(`The JSON schema is not JSON: ${messageOf(error)}`, {}, { cause: error });
    }
  }
  if (typeof value !== "boolean" && !isObject(value))
    throw new RequestError("The JSON schema must be an object or a boolean");
  return value;
}

/** Adds the rules of ``schema`` to ``book``; returns the expression of a valid JSON text. Throws RequestError. */
export function schemaExpression(book: RuleBook, schema: Schema, where = "The JSON schema", strings?: Strings): string {
  const expression = new SchemaRules(book, schema, where, strings).of(schema, where);
  if (expression === null) throw new RequestError(`${where} allows no value at all`);
  return expression;
}

/** With ``strings``, strings and property names are written in their way. */
export class SchemaRules {
  readonly #refs = new Map<string, string>();
  readonly #objects: ObjectRules;
  #depth = 0;

  constructor(
    private readonly book: RuleBook,
    private readonly root: Schema,
    private readonly top: string,
    private readonly strings: Strings = new StringRules(book),
  ) {
    this.#objects = new ObjectRules(
      book,
      this.strings,
      (schema, where) => this.of(schema, where),
      (schema, where) => this.expand(schema, where),
    );
  }

  /**
   * The expression of a value; null if no value is valid. ``open`` are the references that led here without a character
   * between them.
   */
  of(schema: unknown, where: string, open: readonly string[] = []): string | null {
    if (schema === true) return this.any();
    if (schema === false) return null;
    if (!isObject(schema)) throw new RequestError(`${where} must be a schema: an object or a boolean`);
    if (++this.#depth > MAX_DEPTH)
      throw new RequestError(`${where}: is nested too deep, or merges with itself without end`);
    try {
      return this.ofObject(assertions(schema, where), where, open);
    } finally {
      this.#depth--;
    }
  }

  private ofObject(schema: SchemaObject, where: string, open: readonly string[]): string | null {
    const { $ref, allOf, anyOf, oneOf, ...rest } = schema;
    if ($ref !== undefined) {
      const others = { ...schema };
      delete others.$ref;
      if (Object.keys(others).length === 0) return this.reference($ref as string, where, open);
      return this.of(merge(this.expand({ $ref }, where), others, where), where, open);
    }
    if (allOf !== undefined) {
      const others = { ...schema };
      delete others.allOf;
      const parts = checkedList(allOf, `${where}.allOf`).map((part) => this.expand(part, where));
      return this.of(
        parts.reduce((merged, part) => merge(merged, part, where), others),
        where,
        open,
      );
    }
    if (anyOf !== undefined && oneOf !== undefined)
      throw new RequestError(`${where}: has anyOf and oneOf; remove one of them`);
    if (anyOf !== undefined || oneOf !== undefined) {
      const key = anyOf === undefined ? "oneOf" : "anyOf";
      const branches = checkedList(anyOf ?? oneOf, `${where}.${key}`).map((branch) =>
        Object.keys(rest).length === 0 ? branch : merge(rest, this.expand(branch, where), where),
      );
      if (oneOf !== undefined) this.requireExclusive(branches, where);
      return choice(
        this.book,
        branches.map((branch, index) => this.of(branch, `${where}.${key}[${index}]`, open)),
      );
    }
    return constantsOf(rest) === null ? this.ofTypes(rest, where) : this.constants(rest, where);
  }

  private ofTypes(schema: SchemaObject, where: string): string | null {
    const types = typesOf(schema);
    for (const type of types) {
      if (!TYPES.includes(type))
        throw new RequestError(`${where}: type ${JSON.stringify(type)} is not one of ${TYPES.join(", ")}`);
    }
    if (Object.keys(schema).length === 0) return this.any();
    return choice(
      this.book,
      types
        .filter((type) => !(type === "integer" && types.includes("number")))
        .map((type) => this.ofType(type, schema, where)),
    );
  }

  private ofType(type: JsonType, schema: SchemaObject, where: string): string | null {
    switch (type) {
      case "null":
        return this.literal("null");
      case "boolean":
        this.book.demand("true".length);
        return '("true" | "false")';
      case "string":
        return this.strings.of(schema, where);
      case "integer":
      case "number":
        return this.number(type, schema, where);
      case "array":
        return arrayExpression(
          this.book,
          schema,
          where,
          (item, at) => this.of(item, at),
          (item, at) => this.expand(item, at),
        );
      case "object":
        return this.#objects.of(schema, where);
      default:
        return type satisfies never;
    }
  }

  /** Each reference has one rule, so that a schema may contain itself. */
  private reference(ref: string, where: string, open: readonly string[]): string | null {
    if (open.includes(ref)) throw new RequestError(`${where}: $ref ${JSON.stringify(ref)} refers to itself`);
    const known = this.#refs.get(ref);
    if (known !== undefined) return known;
    const target = resolve(this.root, ref, where);
    const name = this.book.reserve("ref");
    this.#refs.set(ref, name);
    const body = this.of(target, `${this.top} at ${ref}`, [...open, ref]);
    if (body === null) throw new RequestError(`${where}: $ref '${ref}' allows no value at all`);
    return this.book.define(name, body);
  }

  /** The schema that a reference leads to, without annotations. */
  expand(schema: Schema, where: string): Schema {
    if (typeof schema !== "boolean" && !isObject(schema))
      throw new RequestError(`${where} must be a schema: an object or a boolean`);
    let target = schema;
    for (let steps = 0; typeof target !== "boolean" && target.$ref !== undefined; steps++) {
      if (steps > MAX_DEPTH) throw new RequestError(`${where}: $ref ${JSON.stringify(target.$ref)} refers to itself`);
      const { $ref, ...rest } = assertions(target, where);
      target = merge(resolve(this.root, $ref, where), rest, where);
    }
    return typeof target === "boolean" ? target : assertions(target, where);
  }

  private requireExclusive(branches: readonly Schema[], where: string): void {
    branches.forEach((branch, index) => {
      const clash = branches.findIndex(
        (other, at) => at < index && !exclusive(branch, other, (schema) => this.expand(schema, where)),
      );
      if (clash >= 0) {
        throw new RequestError(
          `${where}: a value may be valid in both oneOf[${clash}] and oneOf[${index}]; use anyOf, or give them a ` +
            "required property with different constants",
        );
      }
    });
  }

  private constants(schema: SchemaObject, where: string): string | null {
    const texts = [...new Set(allowedConstants(schema, where).map((value) => this.strings.constant(value, where)))];
    if (texts.length < 2) return texts[0] === undefined ? null : this.literal(texts[0]);
    return languageRule(this.book, { kind: "choice", parts: texts.map(literalLanguage) }, "value", where);
  }

  private number(type: "integer" | "number", schema: SchemaObject, where: string): string | null {
    const bounds: Record<string, number> = {};
    for (const name of ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]) {
      const bound = schema[name];
      if (bound === undefined) continue;
      if (typeof bound !== "number" || Number.isNaN(bound)) throw new RequestError(`${where}.${name} must be a number`);
      // Of an integer that no double holds, JSON.parse makes an infinity.
      bounds[name] = Math.min(Math.max(bound, -Number.MAX_VALUE), Number.MAX_VALUE);
    }
    const isInteger = type === "integer";
    const { multipleOf: step } = schema;
    const bounded = Object.keys(bounds).length > 0;
    if (!bounded) this.book.demand("0".length);
    if (!bounded && step === undefined) return isInteger ? this.anyInteger() : this.anyNumber();
    const numbers = bounded
      ? (isInteger ? integerRange : numberRange)(bounds, where)
      : parseRegex(isInteger ? INTEGER : DECIMAL, where);
    if (numbers === null || step === undefined) return numbers && languageRule(this.book, numbers, "value", where);
    const steps = multiples({ ...schema, ...bounds }, where);
    try {
      return languageRule(this.book, { kind: "intersection", parts: [numbers, steps] }, "value", where);
    } catch (error) {
      throw error instanceof RequestError ? unsupportedMultiple(step, where) : error;
    }
  }

  private literal(text: string): string {
    this.book.demand(utf8Length(text));
    return literal(text);
  }

  private any(): string {
    this.book.demand("0".length);
    const gap = space(this.book);
    const string = this.strings.any();
    return this.book.once("any_value", () => {
      const member = `${this.strings.anyKey()} ":" ${gap} any_value`;
      const object = `"{" (${gap} ${member} ("," ${gap} ${member})* ${gap})? "}"`;
      const array = `"[" (${gap} any_value ("," ${gap} any_value)* ${gap})? "]"`;
      return `${object} | ${array} | ${string} | ${this.anyNumber()} | "true" | "false" | "null"`;
    });
  }

  private anyInteger(): string {
    return this.book.once(
      "any_integer",
      () => languageRule(this.book, parseRegex(INTEGER, this.top), "value", this.top) ?? "",
    );
  }

  private anyNumber(): string {
    return this.book.once(
      "any_number",
      () => languageRule(this.book, parseRegex(NUMBER, this.top), "value", this.top) ?? "",
    );
  }
}

// JSON Schema as grammar rules. A schema flows in, rules that make only valid JSON flow out; what the rules could not hold to is refused, never left
// out. They make a part of what the schema allows: properties in the schema's order, and no properties or items that a schema with some does not name.

import { RequestError, messageOf } from "../errors.js";
import { languageRule, literalLanguage } from "./automaton.js";
import type { Ranges, RuleBook } from "./ebnf.js";
import { alternatives, charClass, literal, repeat, single, subtract, utf8Length } from "./ebnf.js";
import { FORMATS } from "./formats.js";
import { integerRange, numberRange } from "./number_range.js";
import { parseRegex } from "./regex.js";
import type { JsonType, Schema, SchemaObject } from "./schema_merge.js";
import {
  TYPES,
  assertions,
  constantsOf,
  exclusive,
  isObject,
  listOf,
  merge,
  resolve,
  typeOfValue,
  typesOf,
} from "./schema_merge.js";

// Deeper than any schema that ends.
const MAX_DEPTH = 100;
const HEX = "[0-9a-fA-F]";
// Any character that a JSON string holds as it is, and those of ASCII.
const PLAIN = '[^\\x00-\\x1f"\\\\]';
const PLAIN_ASCII: Ranges = [
  [0x20, 0x21],
  [0x23, 0x5b],
  [0x5d, 0x7f],
];
// Digits that a double surely holds.
const INTEGER = "-?(0|[1-9]\\d{0,14})";
const NUMBER = `${INTEGER}(\\.\\d{1,15})?([eE][+-]?\\d{1,2})?`;

/** A schema's text or value, checked to be a schema. Throws RequestError. */
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

/** Adds the rules of ``schema`` to ``book``; returns the expression of a JSON text that is valid. Throws RequestError. */
export function schemaExpression(book: RuleBook, schema: Schema, where = "The JSON schema"): string {
  const expression = new SchemaRules(book, schema, where).of(schema, where, []);
  if (expression === null) throw new RequestError(`${where} allows no value at all`);
  return expression;
}

class SchemaRules {
  readonly #refs = new Map<string, string>();
  readonly #excluded = new Map<string, string>();
  #depth = 0;

  constructor(
    private readonly book: RuleBook,
    private readonly root: Schema,
    private readonly top: string,
  ) {}

  /** The expression of a value, or null where none is valid. ``open`` holds the references that are followed without a character between. */
  of(schema: unknown, where: string, open: readonly string[]): string | null {
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
      const parts = this.list(allOf, `${where}.allOf`).map((part) => this.expand(part, where));
      return this.of(
        parts.reduce((merged, part) => merge(merged, part, where), others),
        where,
        open,
      );
    }
    if (anyOf !== undefined && oneOf !== undefined)
      throw new RequestError(`${where}: has anyOf and oneOf; keep one of them`);
    if (anyOf !== undefined || oneOf !== undefined) {
      const key = anyOf === undefined ? "oneOf" : "anyOf";
      const branches = this.list(anyOf ?? oneOf, `${where}.${key}`).map((branch) =>
        Object.keys(rest).length === 0 ? branch : merge(rest, this.expand(branch, where), where),
      );
      if (oneOf !== undefined) this.requireExclusive(branches, where);
      return this.choice(branches.map((branch, index) => this.of(branch, `${where}.${key}[${index}]`, open)));
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
    return this.choice(
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
        return this.string(schema, where);
      case "integer":
      case "number":
        return this.number(type, schema, where);
      case "array":
        return this.array(schema, where);
      case "object":
        return this.object(schema, where);
      default:
        return type satisfies never;
    }
  }

  /** Each reference has one rule, so that schemas may hold themselves. */
  private reference(ref: string, where: string, open: readonly string[]): string | null {
    if (open.includes(ref))
      throw new RequestError(`${where}: $ref ${JSON.stringify(ref)} leads to itself with nothing between`);
    const known = this.#refs.get(ref);
    if (known !== undefined) return known;
    const target = resolve(this.root, ref, where);
    const name = this.book.reserve("ref");
    this.#refs.set(ref, name);
    const body = this.of(target, `${this.top} at ${ref}`, [...open, ref]);
    if (body === null) throw new RequestError(`${where}: $ref '${ref}' allows no value at all`);
    return this.book.define(name, body);
  }

  /** The schema itself in place of a reference to it, without annotations. */
  private expand(schema: Schema, where: string): Schema {
    let target = schema;
    for (let steps = 0; typeof target !== "boolean" && target.$ref !== undefined; steps++) {
      if (steps > MAX_DEPTH)
        throw new RequestError(`${where}: $ref ${JSON.stringify(target.$ref)} leads to itself with nothing between`);
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
          `${where}: a value may be valid in both oneOf[${clash}] and oneOf[${index}]; use anyOf, or give them a constant that differs`,
        );
      }
    });
  }

  private constants(schema: SchemaObject, where: string): string | null {
    const { type, const: constant, enum: values, ...others } = schema;
    const [other] = Object.keys(others);
    if (other !== undefined)
      throw new RequestError(`${where}: '${other}' is beside const or enum; list only the values that it allows`, {
        keyword: other,
      });
    if (values !== undefined && !Array.isArray(values)) throw new RequestError(`${where}.enum must be a list`);
    const types = listOf(type);
    const allowed = (constant === undefined ? ((values ?? [constant]) as unknown[]) : [constant]).filter((value) => {
      const found = typeOfValue(value);
      return type === undefined || types.includes(found) || (found === "integer" && types.includes("number"));
    });
    const texts = [...new Set(allowed.map((value) => JSON.stringify(value)))];
    if (texts.length < 2) return texts[0] === undefined ? null : this.literal(texts[0]);
    return languageRule(this.book, { kind: "choice", parts: texts.map(literalLanguage) }, "plain", where);
  }

  private string(schema: SchemaObject, where: string): string | null {
    const { pattern, format } = schema;
    const min = count(schema.minLength, 0, `${where}.minLength`);
    const max = count(schema.maxLength, Infinity, `${where}.maxLength`);
    if (pattern !== undefined && format !== undefined)
      throw new RequestError(`${where}: has a pattern and a format; keep one of them`);
    if (pattern !== undefined || format !== undefined) {
      if (pattern !== undefined && typeof pattern !== "string")
        throw new RequestError(`${where}.pattern must be a string`);
      const known = Object.hasOwn(FORMATS, String(format)) ? FORMATS[String(format)] : undefined;
      if (pattern === undefined && known === undefined) {
        throw new RequestError(
          `${where}: the format ${JSON.stringify(format)} is not one of ${Object.keys(FORMATS).join(", ")}`,
        );
      }
      this.book.demand('""'.length);
      const language =
        pattern === undefined ? parseRegex(known ?? "", where) : parseRegex(pattern, `${where}.pattern`, true);
      return quoted(languageRule(this.book, language, "json", where, { min, max }));
    }
    if (min > max) return null;
    if (min > 0) this.book.endings.add("a".repeat(min));
    this.book.demand(min + '""'.length);
    return min === 0 && max === Infinity ? this.anyString() : `"\\"" ${repeat(this.character(), min, max)} "\\""`;
  }

  private number(type: "integer" | "number", schema: SchemaObject, where: string): string | null {
    const names = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"] as const;
    for (const name of names) {
      if (schema[name] !== undefined && !Number.isFinite(schema[name]))
        throw new RequestError(`${where}.${name} must be a number`);
    }
    if (schema.multipleOf !== undefined && !(type === "integer" && schema.multipleOf === 1)) {
      throw new RequestError(
        `${where}: the keyword 'multipleOf' cannot be held to; take it out, or list the values with enum`,
        { keyword: "multipleOf" },
      );
    }
    if (names.every((name) => schema[name] === undefined)) {
      this.book.demand("0".length);
      return type === "integer" ? this.anyInteger() : this.anyNumber();
    }
    const range = (type === "integer" ? integerRange : numberRange)(schema, where);
    return range === null ? null : languageRule(this.book, range, "plain", where);
  }

  private array(schema: SchemaObject, where: string): string | null {
    const min = count(schema.minItems, 0, `${where}.minItems`);
    const max = count(schema.maxItems, Infinity, `${where}.maxItems`);
    // Before 2020, items was the list and additionalItems what came after it.
    const prefix = this.list(
      schema.prefixItems ?? (Array.isArray(schema.items) ? schema.items : []),
      `${where}.prefixItems`,
    );
    const rest = Array.isArray(schema.items) ? schema.additionalItems : schema.items;
    if (schema.uniqueItems === true && max > 1) {
      throw new RequestError(`${where}: the keyword 'uniqueItems' cannot be held to; take it out`, {
        keyword: "uniqueItems",
      });
    }
    const first = prefix
      .slice(0, Math.min(prefix.length, max))
      .map((item, index) => this.of(item, `${where}.prefixItems[${index}]`, []));
    if (first.some((item) => item === null)) return null;
    const { demanded } = this.book;
    const item = this.of(rest ?? prefix.length === 0, `${where}.items`, []);
    const [low, high] = [Math.max(min - first.length, 0), item === null ? 0 : max - first.length];
    const one = this.book.demanded - demanded + ",".length;
    this.book.demand("[]".length + first.length * ",".length + Math.max(low - 1, 0) * one);
    if (low > high) return null;
    const comma = `"," ${this.space()}`;
    const begin = `"[" ${this.space()}`;
    const end = `${this.space()} "]"`;
    // One without a comma before it where there is no prefix.
    const bare = first.length > 0 ? 0 : 1;
    const more = item === null || high === 0 ? "" : repeat(`${comma} ${item}`, Math.max(low - bare, 0), high - bare);
    if (first.length > 0) return `${begin} ${first.join(` ${comma} `)} ${more} ${end}`;
    if (item === null || high === 0) return `${begin} "]"`;
    return low > 0
      ? `${begin} ${item} ${more} ${end}`
      : this.choice([`${begin} ${item} ${more} ${end}`, `${begin} "]"`]);
  }

  private object(schema: SchemaObject, where: string): string | null {
    const min = count(schema.minProperties, 0, `${where}.minProperties`);
    const max = count(schema.maxProperties, Infinity, `${where}.maxProperties`);
    const named = this.record(schema.properties, `${where}.properties`);
    const patterns = Object.entries(this.record(schema.patternProperties, `${where}.patternProperties`));
    const required = new Set(this.list(schema.required, `${where}.required`).map(String));
    const further =
      schema.additionalProperties ?? (schema.properties === undefined && patterns.length === 0 && required.size === 0);
    let additional: string | null;
    const [pattern] = patterns;
    if (pattern === undefined) {
      for (const name of required)
        if (!Object.hasOwn(named, name))
          named[name] = (further === false && schema.additionalProperties === undefined) || further;
      const value = this.of(further, `${where}.additionalProperties`, []);
      additional = value === null ? null : `${this.otherKey(Object.keys(named))} ":" ${this.space()} ${value}`;
      this.book.demand('"a":,'.length);
    } else {
      // Which of several patterns a name matches, and whether a property's name matches one, is beyond the rules.
      if (patterns.length > 1 || Object.keys(named).length > 0 || required.size > 0) {
        throw new RequestError(
          `${where}: patternProperties can be held to only where it is one pattern, without properties or required beside it`,
        );
      }
      const value = this.of(pattern[1], `${where}.patternProperties`, []);
      const key = quoted(
        languageRule(this.book, parseRegex(pattern[0], `${where}.patternProperties`, true), "json", where),
      );
      additional = value === null || key === null ? null : `${key} ":" ${this.space()} ${value}`;
      this.book.demand('"":,'.length);
    }
    this.book.demand(
      Object.keys(named).reduce((sum, name) => sum + utf8Length(JSON.stringify(name)) + ":,".length, "{}".length),
    );
    const members = Object.entries(named).flatMap(([name, value]) => {
      const expression = this.of(value, `${where}.${name}`, []);
      if (expression === null && !required.has(name)) return [];
      return [
        {
          needed: required.has(name),
          text: expression === null ? null : `${literal(JSON.stringify(name))} ":" ${this.space()} ${expression}`,
        },
      ];
    });
    const counted = min > 1 || max < Infinity;
    const comma = (done: number): string => (done === 0 ? this.space() : `"," ${this.space()}`);
    const rules = new Map<string, string | null>();

    /** What follows the members before ``index``, of which ``done`` are there (or whether any is, where their count does not matter). */
    const tail = (index: number, done: number): string | null => {
      const member = members[index];
      if (member === undefined) {
        // Names of further properties may repeat, so only the first of them surely counts.
        const [missing, room] = [Math.max(min - done, 0), max - done];
        const possible = additional !== null && room >= 1 && missing <= 1;
        const others = possible ? repeat(`${comma(1)} ${additional}`, 0, room - 1) : "";
        const more = possible ? `${comma(done)} ${additional} ${others} ${this.space()} "}"` : null;
        return this.choice([missing > 0 ? null : done === 0 ? '"}"' : `${this.space()} "}"`, more]);
      }
      const key = `${index} ${done}`;
      const known = rules.get(key);
      if (known !== undefined) return known;
      const next = member.text === null || done + 1 > max ? null : tail(index + 1, counted ? done + 1 : 1);
      const taken = next === null ? null : `${comma(done)} ${String(member.text)} ${next}`;
      const body = this.choice([taken, member.needed ? null : tail(index + 1, done)]);
      const rule = body === null ? null : this.book.add("member", body);
      rules.set(key, rule);
      return rule;
    };
    const all = tail(0, 0);
    return all === null ? null : `"{" ${all}`;
  }

  /** A name that is none of ``names``, without escapes so that no name has two spellings. */
  private otherKey(names: readonly string[]): string {
    const cached = this.#excluded.get(names.join("\0"));
    if (cached !== undefined) return cached;
    const after = (rests: readonly string[]): string => {
      if (rests.length === 0) return `${PLAIN}* "\\""`;
      const heads = [...new Set(rests.flatMap((rest) => Array.from(rest).slice(0, 1)))];
      const ascii = heads.reduce<Ranges>((set, head) => subtract(set, single(head)), PLAIN_ASCII);
      const beyond = (head: string): string =>
        after(rests.filter((rest) => rest.startsWith(head)).map((rest) => rest.slice(head.length)));
      return alternatives([
        ...(rests.includes("") ? [] : ['"\\""']),
        `${charClass(ascii)} ${PLAIN}* "\\""`,
        ...(heads.every((head) => head < "\x80") ? [`[^\\x00-\\x7f] ${PLAIN}* "\\""`] : []),
        ...heads.map((head) => `${literal(head)} ${this.book.add("key", beyond(head))}`),
      ]);
    };
    // A name that JSON must escape cannot be met.
    const rule = this.book.add("key", `"\\"" ${after(names.filter((name) => JSON.stringify(name) === `"${name}"`))}`);
    this.#excluded.set(names.join("\0"), rule);
    return rule;
  }

  private literal(text: string): string {
    this.book.demand(utf8Length(text));
    return literal(text);
  }

  private any(): string {
    this.book.demand("0".length);
    const space = this.space();
    const string = this.anyString();
    return this.book.once("any_value", () => {
      const object = `"{" (${space} ${string} ":" ${space} any_value ("," ${space} ${string} ":" ${space} any_value)* ${space})? "}"`;
      const array = `"[" (${space} any_value ("," ${space} any_value)* ${space})? "]"`;
      return `${object} | ${array} | ${string} | ${this.anyNumber()} | "true" | "false" | "null"`;
    });
  }

  private anyInteger(): string {
    return this.book.once(
      "any_integer",
      () => languageRule(this.book, parseRegex(INTEGER, this.top), "plain", this.top) ?? "",
    );
  }

  private anyNumber(): string {
    return this.book.once(
      "any_number",
      () => languageRule(this.book, parseRegex(NUMBER, this.top), "plain", this.top) ?? "",
    );
  }

  private anyString(): string {
    const character = this.character();
    return this.book.once("any_string", () => `"\\"" ${character}* "\\""`);
  }

  /** One character; escapes spell no surrogates, so that each is one. */
  private character(): string {
    const escapes = `"\\\\" (["\\\\/bfnrt] | "u" ([0-9a-ce-fA-CE-F] ${HEX} ${HEX} ${HEX} | [dD] [0-7] ${HEX} ${HEX}))`;
    return this.book.once("any_character", () => `${PLAIN} | ${escapes}`);
  }

  /** Between tokens: nothing, a space, or a new line with its indent. Without a bound a model could go on with spaces for ever. */
  private space(): string {
    return this.book.once("space", () => '"" | " " | "\\n" [ \\t]{0,20}');
  }

  /** Each way gets a rule of its own, so that none is joined with another. */
  private choice(expressions: readonly (string | null)[]): string | null {
    const ways = expressions.filter((expression) => expression !== null);
    if (ways.length < 2) return ways[0] ?? null;
    return alternatives(ways.map((way) => this.book.add("way", way)));
  }

  private list(value: unknown, where: string): readonly Schema[] {
    if (value !== undefined && !Array.isArray(value)) throw new RequestError(`${where} must be a list`);
    return listOf(value) as readonly Schema[];
  }

  private record(value: unknown, where: string): Record<string, unknown> {
    if (value !== undefined && !isObject(value)) throw new RequestError(`${where} must be an object`);
    return { ...value };
  }
}

function count(value: unknown, missing: number, where: string): number {
  if (value === undefined) return missing;
  if (!Number.isInteger(value) || (value as number) < 0)
    throw new RequestError(`${where} must be a whole number of at least 0`);
  return value as number;
}

function quoted(inside: string | null): string | null {
  return inside === null ? null : `"\\"" ${inside} "\\""`;
}

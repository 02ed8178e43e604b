// Grammar rules for JSON objects: their named properties in the schema's order, then further properties.

import { RequestError } from "../../errors.js";
import type { RuleBook } from "./ebnf.js";
import { repeat, utf8Length } from "./ebnf.js";
import type { Schema, SchemaObject } from "./schema_merge.js";
import { listOf } from "./schema_merge.js";
import { checkedList, checkedRecord, choice, countOf, space } from "./schema_parts.js";
import type { Strings } from "./schema_strings.js";

const NAME_KEYWORDS = ["type", "enum", "const", "pattern", "format", "minLength", "maxLength"];

/** A property; ``text`` is null if its schema allows no value. */
interface Member {
  readonly required: boolean;
  readonly text: string | null;
}

/** The bounds of the number of properties. */
interface Counts {
  readonly min: number;
  readonly max: number;
}

/**
 * Adds the rules of objects to a book. ``valueOf`` gives the expression of a value from its schema and its location;
 * ``expand`` gives the schema that a schema with ``$ref`` stands for. A subclass changes what stands around and between
 * the members.
 */
export class ObjectRules {
  protected readonly begin: string = '"{"';
  protected readonly end: string = '"}"';
  protected readonly separator: string = '","';

  constructor(
    private readonly book: RuleBook,
    private readonly strings: Strings,
    private readonly valueOf: (schema: unknown, where: string) => string | null,
    private readonly expand: (schema: Schema, where: string) => Schema,
  ) {}

  /** The expression of an object that is valid in ``schema``; null if no object is. Throws RequestError. */
  of(schema: SchemaObject, where: string): string | null {
    const min = countOf(schema.minProperties, 0, `${where}.minProperties`);
    const max = countOf(schema.maxProperties, Infinity, `${where}.maxProperties`);
    let named = checkedRecord(schema.properties, `${where}.properties`);
    const patterns = Object.entries(checkedRecord(schema.patternProperties, `${where}.patternProperties`));
    const required = new Set(checkedList(schema.required, `${where}.required`).map(String));
    let further = schema.additionalProperties ?? (schema.properties === undefined && required.size === 0);
    // A required name without a schema may have any value, unless additionalProperties restricts it.
    for (const name of required) if (!Object.hasOwn(named, name)) named[name] = schema.additionalProperties ?? true;
    const names = this.names(schema.propertyNames ?? true, `${where}.propertyNames`);
    if (names !== null && patterns.length > 0) throw unsupportedNames(where, "patternProperties");
    if (Array.isArray(names)) {
      const listed: readonly string[] = names;
      const others = listed.filter((name) => !Object.hasOwn(named, name)).map((name) => [name, further] as const);
      const allowed = Object.entries(named).map(
        ([name, value]) => [name, listed.includes(name) ? value : false] as const,
      );
      named = Object.fromEntries([...allowed, ...others]);
      further = false;
    } else if (names !== null && Object.keys(named).length > 0) {
      throw unsupportedNames(where, "properties or required");
    }
    let additional: string | null;
    const [pattern] = patterns;
    if (pattern === undefined) {
      const { isMarked } = this.strings;
      if (isMarked && names !== null && !Array.isArray(names))
        throw unsupportedNames(where, "a tool call that is not JSON");
      const key =
        names === null || Array.isArray(names)
          ? isMarked && further === false
            ? null
            : this.strings.otherKey(Object.keys(named), where)
          : this.strings.of(names as SchemaObject, `${where}.propertyNames`);
      additional = this.furtherMember(key, further, `${where}.additionalProperties`);
      this.book.demand('"a":,'.length);
    } else {
      // The rules cannot express which of several patterns a name matches, or that a listed name matches one.
      if (patterns.length > 1 || Object.keys(named).length > 0) {
        throw new RequestError(
          `${where}: patternProperties is supported only with one pattern, and without properties or required ` +
            "beside it",
        );
      }
      const keyWhere = `${where}.patternProperties`;
      additional = this.furtherMember(this.strings.matching(pattern[0], keyWhere), pattern[1], keyWhere);
      this.book.demand('"":,'.length);
    }
    return this.object(named, required, additional, { min, max }, where);
  }

  /** The names that ``propertyNames`` allows: a list, the schema of a string, or null if it allows all names. */
  private names(schema: unknown, where: string): readonly string[] | SchemaObject | null {
    const expanded = this.expand(schema as Schema, where);
    if (typeof expanded === "boolean") return expanded ? null : [];
    const { type, ...others } = expanded;
    const keys = Object.keys(others);
    const unsupported = keys.find((key) => !NAME_KEYWORDS.includes(key));
    if (unsupported !== undefined) {
      throw new RequestError(
        `${where}: the keyword '${unsupported}' is not supported in propertyNames; supported: ` +
          NAME_KEYWORDS.join(", "),
        { keyword: unsupported },
      );
    }
    if (type !== undefined && !listOf(type).includes("string")) return [];
    if (keys.length === 0) return null;
    if (!("enum" in others) && !("const" in others)) return others;
    if (keys.length > 1) {
      throw new RequestError(`${where}: has another keyword beside enum or const; list only the names that it allows`, {
        keyword: "propertyNames",
      });
    }
    const values = "const" in others ? [others.const] : checkedList(others.enum, `${where}.enum`);
    return [...new Set(values.filter((value) => typeof value === "string"))];
  }

  private furtherMember(key: string | null, schema: unknown, where: string): string | null {
    const value = this.valueOf(schema, where);
    return value === null || key === null ? null : this.member(key, this.book.named("further", value));
  }

  protected member(key: string, value: string): string {
    return `${key} ":" ${space(this.book)} ${value}`;
  }

  private object(
    named: Readonly<Record<string, unknown>>,
    required: ReadonlySet<string>,
    additional: string | null,
    counts: Counts,
    where: string,
  ): string | null {
    this.book.demand(
      Object.keys(named).reduce((sum, name) => sum + utf8Length(JSON.stringify(name)) + ":,".length, "{}".length),
    );
    const members = Object.entries(named).flatMap(([name, schema]): Member[] => {
      const value = this.valueOf(schema, `${where}.${name}`);
      if (value === null && !required.has(name)) return [];
      const text = value === null ? null : this.member(this.strings.key(name, where), value);
      return [{ required: required.has(name), text }];
    });
    const inside = this.members(members, additional, counts);
    return inside === null ? null : `${this.begin} ${inside}`;
  }

  /** All members and the closing brace. */
  private members(members: readonly Member[], additional: string | null, counts: Counts): string | null {
    const counted = counts.min > 1 || counts.max < Infinity;
    const rules = new Map<string, string | null>();

    /**
     * The rest of an object after the members before ``index``, of which ``done`` are present. If the count does not
     * matter, ``done`` is 1 for any number.
     */
    const tail = (index: number, done: number): string | null => {
      const member = members[index];
      if (member === undefined) return this.further(additional, done, counts);
      const key = `${index} ${done}`;
      const known = rules.get(key);
      if (known !== undefined) return known;
      const next = member.text === null || done + 1 > counts.max ? null : tail(index + 1, counted ? done + 1 : 1);
      const present = next === null ? null : `${this.comma(done)} ${String(member.text)} ${next}`;
      const body = choice(this.book, [present, member.required ? null : tail(index + 1, done)]);
      const rule = body === null ? null : this.book.add("member", body);
      rules.set(key, rule);
      return rule;
    };
    return tail(0, 0);
  }

  /** Further properties, and the closing brace. Their names may repeat, so only the first one surely counts. */
  private further(additional: string | null, done: number, { min, max }: Counts): string | null {
    const [missing, room] = [Math.max(min - done, 0), max - done];
    const possible = additional !== null && room >= 1 && missing <= 1;
    const others = possible ? repeat(`${this.comma(1)} ${additional}`, 0, room - 1) : "";
    const more = possible ? `${this.comma(done)} ${additional} ${others} ${space(this.book)} ${this.end}` : null;
    const end = done === 0 ? this.end : `${space(this.book)} ${this.end}`;
    return choice(this.book, [missing > 0 ? null : end, more]);
  }

  private comma(done: number): string {
    return done === 0 ? space(this.book) : `${this.separator} ${space(this.book)}`;
  }
}

function unsupportedNames(where: string, other: string): RequestError {
  return new RequestError(
    `${where}: propertyNames is not supported with ${other} beside it, unless it lists the names with enum; ` +
      "remove one of them",
    { keyword: "propertyNames" },
  );
}

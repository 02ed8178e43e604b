// Writes a source as rules that xgrammar compiles.

import { RequestError } from "../../errors.js";
import { argumentsExpression } from "./argument_syntax.js";
import { languageRule } from "./automaton.js";
import { RuleBook, STRING_LITERAL, alternatives, literal, literalBytes, utf8Length } from "./ebnf.js";
import { parseSchema, schemaExpression } from "./json_schema.js";
import { parseRegex } from "./regex.js";
import type { GrammarSource } from "./source.js";

/** What a server can require too: xgrammar's structural tags, which its wasm does not have. */
export type ServerSource =
  | GrammarSource
  /** Any text, in which each ``trigger`` begins calls. */
  | (Calls & { readonly trigger: string })
  /** Either calls or a text of ``form``, which never begins like a call. */
  | { readonly kind: "calls_or_form"; readonly calls: Calls; readonly form: GrammarSource };

type Calls = Extract<GrammarSource, { kind: "tags" }>;

/** A source as xgrammar reads it. */
export interface Rules {
  /** EBNF; for a server's sources a structural tag in JSON. */
  readonly text: string;
  /** Texts that may complete an answer, the longest first. */
  readonly endings: readonly string[];
  /** At least how many tokens one token can add to the shortest completion. */
  readonly reserve: number;
}

// A token can open nested JSON whose closing text is a few bytes for each of its own bytes.
const LEAST_RESERVE = 64;
// Mistral's ids of calls: letters and digits (the validators of mistral-common).
const ID_LENGTH = 9;

/** ``joins``: see RuleBook. Throws RequestError. */
export function sourceRules(source: ServerSource, joins = true): Rules {
  const book = new RuleBook(joins);
  switch (source.kind) {
    case "json_object":
      return rules(book, book.rooted(schemaExpression(book, { type: "object" })));
    case "json_schema":
      return rules(book, book.rooted(schemaExpression(book, parseSchema(source.schema))));
    case "regex": {
      const where = "The regular expression";
      const rule = languageRule(book, parseRegex(source.pattern, where), "answer", where);
      if (rule === null) throw new RequestError(`${where} matches no text`);
      return rules(book, book.rooted(rule));
    }
    case "ebnf":
      return {
        text: source.grammar,
        endings: longestFirst([...source.grammar.matchAll(STRING_LITERAL)].map(([, inner = ""]) => inner)),
        reserve: LEAST_RESERVE + literalBytes(source.grammar),
      };
    case "tags": {
      const trigger = "trigger" in source ? source.trigger : "";
      const grammar = book.rooted(callsExpression(book, source, trigger));
      if (trigger === "") return rules(book, grammar);
      const tag = { type: "tag", begin: trigger, content: { type: "grammar", grammar }, end: "" };
      return rules(book, structuralTag({ type: "triggered_tags", triggers: [trigger], tags: [tag] }));
    }
    case "calls_or_form": {
      const ways = [callRules(source.calls, joins), sourceRules(source.form, joins)];
      return {
        text: structuralTag({ type: "or", elements: ways.map(({ text }) => ({ type: "grammar", grammar: text })) }),
        endings: longestFirst(ways.flatMap(({ endings }) => endings)),
        reserve: ways.reduce((sum, { reserve }) => sum + reserve, 0),
      };
    }
    default:
      return source satisfies never;
  }
}

/** Throws RequestError, which says that the tools are wrong and not the answer's form. */
function callRules(calls: Calls, joins: boolean): Rules {
  try {
    return sourceRules(calls, joins);
  } catch (error) {
    if (error instanceof RequestError) throw new RequestError(`Tools: ${error.message}`, error.details);
    throw error;
  }
}

/** The expression of all calls, without the trigger that begins them. */
function callsExpression(book: RuleBook, source: Calls, trigger: string): string {
  const { separator, begin = "", end = "", gap = "" } = source;
  const untriggered = (text: string): string => (text.startsWith(trigger) ? text.slice(trigger.length) : text);
  const tags = source.tags.map(({ begin: opening, middle = "", schema, end: closing }) => {
    const opened = begin === "" ? untriggered(opening) : opening;
    book.demand(utf8Length(opened + middle + closing));
    let head = literal(opened + middle);
    if (gap !== "") {
      book.demand(utf8Length(gap) + ID_LENGTH);
      const id = book.once("call_id", () => `${literal(gap)} [A-Za-z0-9]{${ID_LENGTH}} | ""`);
      head = `${literal(opened)} ${id} ${literal(middle)}`;
    }
    const value = argumentsExpression(book, parseSchema(schema), source.arguments);
    return book.add("way", `${head} ${value} ${literal(closing)}`);
  });
  const one = book.add("tag", alternatives(tags));
  book.demand(utf8Length((separator ?? "") + begin + end));
  const calls = separator === null ? one : `${one} (${literal(separator)} ${one})*`;
  if (begin === "") return calls;
  book.endings.add(end);
  return `${literal(untriggered(begin))} ${calls} ${literal(end)}`;
}

function rules(book: RuleBook, text: string): Rules {
  return {
    text,
    endings: longestFirst([...book.endings]),
    reserve: LEAST_RESERVE + book.demanded + book.longestEnd,
  };
}

function structuralTag(format: object): string {
  return JSON.stringify({ type: "structural_tag", format });
}

/** A long ending is tried first, because a short one may also be a part of a repetition. */
function longestFirst(endings: readonly string[]): readonly string[] {
  return [...new Set(endings)].sort((a, b) => b.length - a.length);
}

// The grammar compiler, which turns sources into constraints. It is a separate chunk, because it contains the wasm.

import { argumentsExpression } from "./argument_syntax.js";
import { languageRule } from "./automaton.js";
import type { TokenShapes } from "./bounded.js";
import { BoundedConstraint } from "./bounded.js";
import { Shortener } from "./completion.js";
import type { GrammarConstraint } from "./constraint.js";
import { MatcherConstraint, setBit } from "./constraint.js";
import { RequestError } from "../errors.js";
import { RuleBook, STRING_LITERAL, alternatives, literal, literalBytes, utf8Length } from "./ebnf.js";
import { parseSchema, schemaExpression } from "./json_schema.js";
import { parseRegex } from "./regex.js";
import { ReasoningConstraint } from "./reasoning_constraint.js";
import type { ReasoningStart } from "./reasoning_constraint.js";
import type { GrammarSource } from "./source.js";
import { TimedConstraint } from "./timed.js";
import type { Vocabulary, VocabularySpec } from "./vocabulary.js";
import { readVocabulary } from "./vocabulary.js";
import { GrammarWasm } from "./wasm.js";
import type { Handle } from "./xgrammar.js";

export type { GrammarConstraint } from "./constraint.js";
export type { GrammarSource, TagSource } from "./source.js";
export type { Vocabulary } from "./vocabulary.js";
export { readVocabulary } from "./vocabulary.js";

/** Compiled grammars kept; the oldest goes first. */
const MOST_KEPT = 32;
// A token can open nested JSON whose closing text is a few bytes for each of its own bytes.
const LEAST_RESERVE = 64;
// Mistral's ids of calls: letters and digits (the validators of mistral-common).
const ID_LENGTH = 9;

/** A source as xgrammar reads it. */
export interface Rules {
  readonly text: string;
  /** Texts that may complete an answer. */
  readonly endings: readonly string[];
  /** At least how many tokens one token can add to the shortest completion. */
  readonly reserve: number;
}

interface Compiled {
  readonly wasm: GrammarWasm;
  readonly grammar: Handle;
  readonly endings: readonly string[];
  /** At least how many tokens one token can add to the shortest completion. */
  readonly reserve: number;
}

/** Creates grammar compilers. */
export interface GrammarModule {
  /**
   * ``tokenizerJson`` is the text of the bundle's tokenizer.json. Throws RequestError for a tokenizer whose tokens have
   * no bytes of their own, BundleError for a file that is not a tokenizer.
   */
  readonly compiler: (tokenizerJson: string, spec: VocabularySpec) => GrammarCompiler;
}

/**
 * The option `grammar` of Engine.load and serveEngine, for scripts that cannot import this file later, such as service
 * workers.
 */
export const grammar: GrammarModule = {
  compiler: (tokenizerJson, spec) => new GrammarCompiler(readVocabulary(tokenizerJson, spec)),
};

export class GrammarCompiler {
  readonly #compiled = new Map<string, Promise<Compiled>>();
  #wasm: GrammarWasm | null = null;
  #shortener: Shortener | null = null;
  #shapes: TokenShapes | null = null;

  constructor(private readonly vocabulary: Vocabulary) {}

  /**
   * A constraint for one answer. The answer is a complete text of the grammar within ``maxTokens``; without maxTokens
   * it may be cut off. If the answer ``starts`` with reasoning, the grammar constrains what follows it; without a
   * source, only the reasoning is limited. Throws RequestError for a grammar that is wrong or needs more tokens, and
   * DeviceError if the page may not run wasm.
   */
  async constraint<Source extends GrammarSource | undefined>(
    source: Source,
    maxTokens?: number,
    starts?: ReasoningStart,
  ): Promise<GrammarConstraint | (Source & undefined)> {
    const form = source && (await this.form(source, maxTokens));
    const { tokens, eosTokenIds } = this.vocabulary;
    return starts === undefined
      ? form
      : new ReasoningConstraint(
          starts,
          { maxTokens: maxTokens ?? Infinity, vocabSize: tokens.length, endTokenIds: eosTokenIds },
          form,
        );
  }

  private async form(source: GrammarSource, maxTokens: number | undefined): Promise<GrammarConstraint> {
    const { wasm, grammar, endings, reserve } = await this.compiled(source);
    const inner = new MatcherConstraint(wasm.matcher(grammar));
    if (maxTokens === undefined) return new TimedConstraint(inner);
    this.#shortener ??= new Shortener(this.vocabulary);
    this.#shapes ??= tokenShapes(this.vocabulary);
    try {
      return new TimedConstraint(
        new BoundedConstraint(inner, { maxTokens, reserve, endings }, this.#shortener, this.#shapes),
      );
    } catch (error) {
      inner.dispose();
      throw error;
    }
  }

  private compiled(source: GrammarSource): Promise<Compiled> {
    const key = JSON.stringify(source);
    const known = this.#compiled.get(key);
    if (known !== undefined) return known;
    for (const [oldest, compiled] of this.#compiled) {
      if (this.#compiled.size < MOST_KEPT) break;
      this.#compiled.delete(oldest);
      void compiled.then(({ grammar }) => {
        grammar.delete();
      });
    }
    const compiled = this.compile(source);
    this.#compiled.set(key, compiled);
    compiled.catch(() => this.#compiled.delete(key));
    return compiled;
  }

  private async compile(source: GrammarSource): Promise<Compiled> {
    const { text, endings, reserve } = ebnf(source);
    if (this.#wasm === null || this.#wasm.broken) this.#wasm = await GrammarWasm.load(this.vocabulary);
    return { wasm: this.#wasm, grammar: this.#wasm.compile(text), endings, reserve };
  }
}

/** The rules of a source as text. Throws RequestError. */
export function ebnf(source: GrammarSource): Rules {
  const book = new RuleBook();
  switch (source.kind) {
    case "json_object":
      return rooted(book, schemaExpression(book, { type: "object" }));
    case "json_schema":
      return rooted(book, schemaExpression(book, parseSchema(source.schema)));
    case "regex": {
      const where = "The regular expression";
      const rule = languageRule(book, parseRegex(source.pattern, where), "plain", where);
      if (rule === null) throw new RequestError(`${where} matches no text`);
      return rooted(book, rule);
    }
    case "ebnf":
      return {
        text: source.grammar,
        endings: longestFirst([...source.grammar.matchAll(STRING_LITERAL)].map(([, inner = ""]) => inner)),
        reserve: LEAST_RESERVE + literalBytes(source.grammar),
      };
    case "tags": {
      const { separator, begin = "", end = "", gap = "" } = source;
      const tags = source.tags.map(({ begin, middle = "", schema, end }) => {
        book.demand(utf8Length(begin + middle + end));
        let head = literal(begin + middle);
        if (gap !== "") {
          book.demand(utf8Length(gap) + ID_LENGTH);
          const id = book.once("call_id", () => `${literal(gap)} [A-Za-z0-9]{${ID_LENGTH}} | ""`);
          head = `${literal(begin)} ${id} ${literal(middle)}`;
        }
        const value = argumentsExpression(book, parseSchema(schema), source.arguments);
        return book.add("way", `${head} ${value} ${literal(end)}`);
      });
      const one = book.add("tag", alternatives(tags));
      book.demand(utf8Length((separator ?? "") + begin + end));
      if (begin !== "") book.endings.add(end);
      const calls = separator === null ? one : `${one} (${literal(separator)} ${one})*`;
      return rooted(book, begin === "" ? calls : `${literal(begin)} ${calls} ${literal(end)}`);
    }
    default:
      return source satisfies never;
  }
}

function rooted(book: RuleBook, expression: string): Rules {
  const reserve = LEAST_RESERVE + book.demanded + book.longestEnd;
  return { text: `root ::= ${expression}\n${book.toString()}`, endings: longestFirst([...book.endings]), reserve };
}

/** A long ending is tried first, because a short one may also be a part of a repetition. */
function longestFirst(endings: readonly string[]): readonly string[] {
  return [...endings].sort((a, b) => b.length - a.length);
}

function tokenShapes({ tokens }: Vocabulary): TokenShapes {
  const plain = new Int32Array(Math.ceil(tokens.length / 32));
  const decoder = new TextDecoder("utf-8", { fatal: true });
  tokens.forEach((bytes, id) => {
    if (bytes.length === 0 || bytes.some((byte) => byte < 0x20 || byte === 0x22 || byte === 0x5c || byte === 0x7f))
      return;
    try {
      decoder.decode(bytes);
      setBit(plain, id);
    } catch {
      // The effect of an incomplete character depends on the rest of it.
    }
  });
  const lengthOf = (id: number): number => tokens[id]?.length ?? 0;
  const shortestFirst = [...tokens.keys()]
    .filter((id) => lengthOf(id) > 0)
    .sort((a, b) => lengthOf(a) - lengthOf(b) || a - b);
  return { plain, shortestFirst };
}

// The grammar compiler, which turns sources into constraints. It is a separate chunk, because it contains the wasm.

import type { TokenShapes } from "./bounded.js";
import { BoundedConstraint } from "./bounded.js";
import { Shortener } from "./completion.js";
import type { GrammarConstraint } from "./constraint.js";
import { MatcherConstraint, setBit } from "./constraint.js";
import { ReasoningConstraint } from "./reasoning_constraint.js";
import type { ReasoningStart } from "./reasoning_constraint.js";
import type { Rules } from "../shared/grammar/rules.js";
import { sourceRules } from "../shared/grammar/rules.js";
import type { GrammarSource } from "../shared/grammar/source.js";
import { TimedConstraint } from "./timed.js";
import type { Vocabulary, VocabularySpec } from "./vocabulary.js";
import { readVocabulary } from "./vocabulary.js";
import { GrammarWasm } from "./wasm.js";
import type { Handle } from "./xgrammar.js";

export type { GrammarConstraint } from "./constraint.js";
export type { GrammarSource, TagSource } from "../shared/grammar/source.js";
export type { Vocabulary } from "./vocabulary.js";
export { readVocabulary } from "./vocabulary.js";

/** Compiled grammars kept; the oldest goes first. */
const MOST_KEPT = 32;

interface Compiled extends Omit<Rules, "text"> {
  readonly wasm: GrammarWasm;
  readonly grammar: Handle;
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
    const { text, endings, reserve } = sourceRules(source);
    if (this.#wasm === null || this.#wasm.broken) this.#wasm = await GrammarWasm.load(this.vocabulary);
    return { wasm: this.#wasm, grammar: this.#wasm.compile(text), endings, reserve };
  }
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

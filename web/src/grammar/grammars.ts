// One engine's grammars: what an answer may be flows in, constraints flow out. The compiler, with the wasm in it, loads when it is first asked for.

import { DeviceError, RequestError, messageOf } from "../errors.js";
import type { GrammarCompiler, GrammarConstraint } from "./index.js";
import type { ReasoningStart } from "./reasoning_constraint.js";
import type { GrammarSource } from "./source.js";

export class Grammars {
  #compiler: Promise<GrammarCompiler> | null = null;

  /** ``tokenizerJson`` is the text of the bundle's tokenizer.json. */
  constructor(
    private readonly tokenizerJson: string,
    private readonly spec: { readonly vocab_size: number; readonly eos_token_ids: readonly number[] },
  ) {}

  /** See GrammarCompiler.constraint. Each grammar is compiled once. */
  async constraint(source: GrammarSource, maxTokens?: number, starts?: ReasoningStart): Promise<GrammarConstraint>;
  async constraint(source: GrammarSource | undefined, maxTokens?: number, starts?: ReasoningStart): Promise<GrammarConstraint | undefined>;
  async constraint(source: GrammarSource | undefined, maxTokens?: number, starts?: ReasoningStart): Promise<GrammarConstraint | undefined> {
    if (source && this.spec.eos_token_ids.length === 0) {
      throw new RequestError("This model has no token that ends an answer, which a grammar needs; compile it with its eos_token_id");
    }
    this.#compiler ??= this.load();
    try {
      return await (await this.#compiler).constraint(source, maxTokens, starts);
    } catch (error) {
      // A chunk that did not load may at the next try.
      if (!(await settled(this.#compiler))) this.#compiler = null;
      throw error;
    }
  }

  private async load(): Promise<GrammarCompiler> {
    const { GrammarCompiler, readVocabulary } = await import("../grammar/index.js").catch((error: unknown) => {
      throw new DeviceError(
        `The grammar compiler cannot be loaded (${messageOf(error)}); serve grammar.js beside the package's other files; service workers cannot load it`,
        {},
        { cause: error },
      );
    });
    return new GrammarCompiler(readVocabulary(this.tokenizerJson, this.spec));
  }
}

async function settled(promise: Promise<unknown>): Promise<boolean> {
  return promise.then(
    () => true,
    () => false,
  );
}

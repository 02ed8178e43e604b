// One engine's grammars, and the constraints on answers that they make. The compiler, which contains the wasm, is
// imported when a grammar is first needed.

import { DeviceError, RequestError, messageOf } from "../errors.js";
import type { GrammarConstraint } from "./constraint.js";
import type { GrammarCompiler, GrammarModule } from "./index.js";
import type { ReasoningStart } from "./reasoning_constraint.js";
import type { GrammarSource } from "../shared/grammar/source.js";

export class Grammars {
  #compiler: Promise<GrammarCompiler> | null = null;

  /**
   * ``tokenizerJson`` is the text of the bundle's tokenizer.json. Without ``grammar``, grammar.js is imported when the
   * first grammar is compiled.
   */
  constructor(
    private readonly tokenizerJson: string,
    private readonly spec: Parameters<GrammarModule["compiler"]>[1],
    private readonly grammar?: GrammarModule,
  ) {}

  /** See GrammarCompiler.constraint. Each grammar is compiled once. */
  async constraint<Source extends GrammarSource | undefined>(
    source: Source,
    maxTokens?: number,
    starts?: ReasoningStart,
  ): Promise<GrammarConstraint | (Source & undefined)> {
    if (source && this.spec.eos_token_ids.length === 0) {
      throw new RequestError(
        "This model has no token that ends an answer, which a grammar needs; compile it with its eos_token_id",
      );
    }
    this.#compiler ??= this.load().catch((error: unknown) => {
      // The next request tries again, because a file that could not be loaded may load then.
      this.#compiler = null;
      throw error;
    });
    return (await this.#compiler).constraint(source, maxTokens, starts);
  }

  private async load(): Promise<GrammarCompiler> {
    const { compiler } = this.grammar ?? (await importGrammar());
    return compiler(this.tokenizerJson, this.spec);
  }
}

/** Throws DeviceError if grammar.js cannot be imported. */
async function importGrammar(): Promise<GrammarModule> {
  try {
    return (await import("../grammar/index.js")).grammar;
  } catch (error) {
    throw new DeviceError(
      `The grammar compiler cannot be loaded (${messageOf(error)}); serve grammar.js beside the package's other ` +
        "files; a service worker must import it itself and call serveEngine(self, { grammar })",
      {},
      { cause: error },
    );
  }
}

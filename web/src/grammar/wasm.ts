// One instance of xgrammar's wasm, with one vocabulary in it. Grammars in EBNF flow in, matchers flow out.

import instantiate from "xgrammar-wasm";

import { DeviceError, RequestError, messageOf } from "../errors.js";
import type { Vocabulary } from "./vocabulary.js";
import type { Binding, Compiler, Handle, Matcher } from "./xgrammar.js";

export class GrammarWasm {
  /** After an error nothing in the wasm is sure: what runs may end, what is new needs a new instance. */
  broken = false;

  private constructor(
    private readonly binding: Binding,
    private readonly compiler: Compiler,
    private readonly log: string[],
    readonly vocabulary: Vocabulary,
  ) {}

  /** Throws DeviceError if the page may not run wasm. */
  static async load(vocabulary: Vocabulary): Promise<GrammarWasm> {
    const log: string[] = [];
    const note = (line: string): void => void log.push(line);
    let binding: Binding;
    try {
      binding = await instantiate({ print: note, printErr: note });
    } catch (error) {
      const advice = /unsafe-eval|Content.Security.Policy/i.test([messageOf(error), ...log].join(" "))
        ? "this page's Content-Security-Policy forbids it; add 'wasm-unsafe-eval' to its script-src"
        : messageOf(error);
      throw new DeviceError(
        `Structured output needs WebAssembly, which does not start: ${advice}`,
        {},
        { cause: error },
      );
    }
    const info = new binding.TokenizerInfo(
      binding.vecStringFromJSArray(
        vocabulary.tokens.map((bytes) => (bytes.some(isForeign) ? new Uint8Array() : bytes)),
      ),
      "RAW",
      vocabulary.size,
      binding.vecIntFromJSArray(vocabulary.eosTokenIds),
      false,
    );
    return new GrammarWasm(binding, new binding.GrammarCompiler(info, 1, false), log, vocabulary);
  }

  /** Throws RequestError if the text is not EBNF. */
  compile(ebnf: string): Handle {
    this.log.length = 0;
    let grammar: Handle | null = null;
    try {
      grammar = this.binding.Grammar.FromEBNF(ebnf, "root");
      return this.compiler.CompileGrammar(grammar);
    } catch (error) {
      this.broken = true;
      const problem = this.log
        .find((line) => line.startsWith("[FATAL]"))
        ?.replace(/^\[FATAL\] \S+ (Check failed: .* is false: )?/, "");
      throw new RequestError(`The grammar is not one: ${problem ?? messageOf(error)}`, {}, { cause: error });
    } finally {
      if (!this.broken) grammar?.delete();
    }
  }

  matcher(grammar: Handle): GrammarMatcher {
    return new GrammarMatcher(
      this.binding,
      new this.binding.GrammarMatcher(grammar, undefined, false, -1),
      this.vocabulary,
      this.log,
    );
  }
}

/** Bytes that are in no UTF-8, which xgrammar 0.1.27 lets come. */
function isForeign(byte: number): boolean {
  return byte === 0xc0 || byte === 0xc1 || byte > 0xf4;
}

/** A grammar's state after some text. Each token or text accepted is one step, which can be taken back. */
export class GrammarMatcher {
  constructor(
    private readonly binding: Binding,
    private readonly handle: Matcher,
    readonly vocabulary: Vocabulary,
    private readonly log: string[],
  ) {}

  acceptToken(id: number): boolean {
    // Each refusal may write a line.
    this.log.length = 0;
    return this.handle.AcceptToken(id, false);
  }

  acceptText(text: string): boolean {
    return this.handle.AcceptString(text, false);
  }

  rollback(steps: number): void {
    if (steps > 0) this.handle.Rollback(steps);
  }

  /** Whether the text is complete as it is. */
  complete(): boolean {
    const [eos] = this.vocabulary.eosTokenIds;
    if (eos === undefined || !this.acceptToken(eos)) return false;
    this.rollback(1);
    return true;
  }

  /** The text that must come next; "" if there is a choice. */
  forced(): string {
    return this.handle.FindJumpForwardString();
  }

  /** One bit for each token that may come next, with stop tokens if the text is complete. */
  mask(): Int32Array<ArrayBuffer> {
    const { size } = this.vocabulary;
    const vector = this.handle.GetNextTokenBitmask(size);
    const mask = new Int32Array(this.binding.vecIntToView(vector));
    vector.delete();
    // The last word's bits past the vocabulary are set.
    const last = mask.length - 1;
    if (size % 32 !== 0) mask[last] = (mask[last] ?? 0) & ((1 << (size % 32)) - 1);
    return mask;
  }

  dispose(): void {
    this.handle.delete();
  }
}

// The parts of xgrammar's wasm that are used here, as types.

/** An object of the wasm's, to be deleted by hand. */
export interface Handle {
  delete(): void;
}

export interface Matcher extends Handle {
  AcceptToken(id: number, verbose: boolean): boolean;
  AcceptString(text: string, verbose: boolean): boolean;
  GetNextTokenBitmask(vocabSize: number): Handle;
  FindJumpForwardString(): string;
  Rollback(count: number): void;
}

export interface Compiler extends Handle {
  CompileGrammar(grammar: Handle): Handle;
}

export interface Binding {
  vecStringFromJSArray(items: readonly Uint8Array[]): Handle;
  vecIntFromJSArray(items: readonly number[]): Handle;
  vecIntToView(vector: Handle): Int32Array;
  readonly Grammar: { FromEBNF(text: string, root: string): Handle };
  readonly TokenizerInfo: new (
    vocab: Handle,
    kind: "RAW",
    vocabSize: number,
    stopTokenIds: Handle,
    prependSpace: boolean,
  ) => Handle;
  readonly GrammarCompiler: new (tokenizer: Handle, maxThreads: number, cache: boolean) => Compiler;
  readonly GrammarMatcher: new (
    grammar: Handle,
    stopTokenIds: undefined,
    withoutStopToken: boolean,
    maxRollback: number,
  ) => Matcher;
}

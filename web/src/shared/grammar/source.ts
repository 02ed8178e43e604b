// The kinds of grammar that a request can require.

import type { ToolFormatEntry } from "../../runtime/manifest.js";

export type GrammarSource =
  /** Any JSON object. */
  | { readonly kind: "json_object" }
  /** JSON that is valid in a schema, which is a value or its text. */
  | { readonly kind: "json_schema"; readonly schema: unknown }
  /** A text that an ECMAScript pattern matches completely. */
  | { readonly kind: "regex"; readonly pattern: string }
  /** A text of a grammar in xgrammar's EBNF, from its rule ``root``. */
  | { readonly kind: "ebnf"; readonly grammar: string }
  /**
   * ``begin``, one of ``tags`` or, with a separator, any number of them, and ``end``. ``arguments`` is the syntax of the
   * values. ``gap`` precedes ids; without it, calls have none.
   */
  | {
      readonly kind: "tags";
      readonly tags: readonly TagSource[];
      readonly separator: string | null;
      readonly begin?: string;
      readonly end?: string;
      readonly arguments?: ToolFormatEntry["arguments"];
      readonly gap?: string;
    };

/** A value of a schema between two texts. An id of the call may follow ``begin``; then ``middle`` precedes the value. */
export interface TagSource {
  readonly begin: string;
  readonly middle?: string;
  readonly schema: unknown;
  readonly end: string;
}

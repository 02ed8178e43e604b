// The formats of tool calls as the compiler writes them to manifests, and the shared vectors of their parsers.

import vectors from "../../../tests/conformance/tool_calls.json" with { type: "json" };
import type { ToolFormatEntry } from "../../src/runtime/manifest.js";
import type { Tool } from "../../src/text/tools.js";

interface Vectors {
  readonly formats: Readonly<Record<string, ToolFormatEntry>>;
  readonly cases: readonly {
    readonly format: string;
    /** The string parameters of each function. */
    readonly texts?: Readonly<Record<string, readonly string[]>>;
    readonly text: string;
    /** Texts, and pairs of a call's name and arguments. */
    readonly expected: readonly (string | readonly [string, string])[];
  }[];
  /** The answers that a required call of the tools allows. */
  readonly grammar: {
    readonly tools: readonly Tool[];
    readonly cases: readonly { readonly format: string; readonly text: string; readonly valid: boolean }[];
  };
}

// The worker of a test is bundled into one module, which cannot find files.
export const { formats: FORMATS, cases: CASES, grammar: GRAMMAR } = vectors as unknown as Vectors;

export function formatOf(name: string): ToolFormatEntry {
  const format = FORMATS[name];
  if (format === undefined) throw new Error(`no format ${name}`);
  return format;
}

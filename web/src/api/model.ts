// What the API needs of an engine: where tokens come from, texts to token ids and back, and, where they are there, grammars and tool calls.

import type { Constraint, TokenSource } from "../engine/request.js";
import type { Message } from "../text/chat_template.js";
import type { Decoder } from "../text/text_stream.js";
import type { ChatCompletionToolChoiceOption, FunctionTool } from "./types.js";

export interface TextCodec extends Decoder {
  encode(text: string, addSpecialTokens?: boolean): readonly number[];
  encodeChat(messages: readonly Message[], options?: { readonly tools?: readonly FunctionTool[] | undefined }): readonly number[];
  /** The bytes that a token stands for; null for ids without a token. */
  tokenBytes(id: number): Uint8Array | null;
}

/** What an answer may be. */
export type GrammarSpec =
  | { readonly kind: "json_object" }
  | { readonly kind: "json_schema"; readonly schema: unknown }
  | { readonly kind: "regex"; readonly pattern: string }
  /** EBNF, from its rule ``root``. */
  | { readonly kind: "ebnf"; readonly grammar: string }
  /** JSON of a schema between two texts: one of ``tags``, or, with a separator, any number of them. */
  | { readonly kind: "tags"; readonly tags: readonly { readonly begin: string; readonly schema: unknown; readonly end: string }[]; readonly separator: string | null };

export interface GrammarProvider {
  /** A fresh state for one answer of at most ``maxTokens``. Throws RequestError for a text that is no schema, pattern or grammar. */
  constraint(spec: GrammarSpec, maxTokens: number | undefined): Promise<Constraint>;
}

export type ToolEvent =
  | { readonly type: "text"; readonly text: string }
  | { readonly type: "call"; readonly index: number; readonly id: string; readonly name: string }
  | { readonly type: "arguments"; readonly index: number; readonly text: string };

/** Reads tool calls out of an answer's text, in pieces as they come. */
export interface ToolCallParser {
  feed(text: string): readonly ToolEvent[];
  finish(): readonly ToolEvent[];
}

/** How a model writes tool calls. */
export interface ToolFormat {
  parser(): ToolCallParser;
  /** The grammar of an answer that must be a call: tool_choice "required", or one function. */
  grammar(tools: readonly FunctionTool[], choice: Exclude<ChatCompletionToolChoiceOption, "none" | "auto">): GrammarSpec;
}

export interface Model {
  readonly name: string;
  readonly tokens: TokenSource;
  readonly text: TextCodec;
  readonly grammar?: GrammarProvider | undefined;
  readonly tools?: ToolFormat | undefined;
}

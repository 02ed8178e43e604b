// The API's interface to an engine: a source of tokens and a text codec, and optionally grammars and tool calls.

import type { Ears } from "../attachments/index.js";
import type { SoundSource } from "../audio/index.js";
import type { Constraint, PromptImage, TokenSource } from "../engine/request.js";
import type { ReasoningStart } from "../grammar/reasoning_constraint.js";
import type { GrammarSource } from "../shared/grammar/source.js";
import type { ImageSource } from "../images/index.js";
import type { RenderedMessage } from "../text/chat_template.js";
import type { WritePictures } from "../text/control_tokens.js";
import type { Decoder } from "../text/text_stream.js";
import type { ThinkingModel } from "../text/thinking.js";
import type { ToolCallEvent } from "../text/tool_call_stream.js";
import type { ChatCompletionToolChoiceOption, FunctionTool } from "./types.js";

export interface TextCodec extends Decoder {
  encode(text: string, addSpecialTokens?: boolean, splitSpecialTokens?: boolean): readonly number[];
  encodeChat(
    messages: readonly RenderedMessage[],
    options?: {
      readonly tools?: readonly FunctionTool[] | undefined;
      readonly variables?: Readonly<Record<string, unknown>> | undefined;
      readonly pictures?: WritePictures | undefined;
    },
  ): readonly number[];
  readonly thinking: ThinkingModel;
  /** The bytes of a token; null for an id without a token. */
  tokenBytes(id: number): Uint8Array | null;
  /** The bytes that a token adds to decoded text. */
  writtenBytes(id: number, skipSpecialTokens: boolean): Uint8Array;
}

export interface GrammarProvider {
  /**
   * A new constraint for one answer of at most ``maxTokens``. ``spec`` applies after the reasoning that the answer
   * ``starts`` with. Throws RequestError if the source is not a valid schema, pattern or grammar.
   */
  constraint(
    spec: GrammarSource | undefined,
    maxTokens: number | undefined,
    starts?: ReasoningStart,
  ): Promise<Constraint | undefined>;
}

/** Reads the tool calls in an answer's text while it is generated. */
export interface ToolCallParser {
  /** Whether a call has started. */
  readonly called: boolean;
  /** Whether the answer so far ends with a call whose arguments are complete. */
  readonly complete: boolean;
  /** The end of the text so far, of which is not known whether it is a call. */
  readonly undecided: string;
  feed(text: string): readonly ToolCallEvent[];
  finish(): readonly ToolCallEvent[];
}

/** The form in which a model writes tool calls. */
export interface ToolFormat {
  parser(tools: readonly FunctionTool[]): ToolCallParser;
  /** The grammar of an answer that must be a call: tool_choice "required", or one function. */
  grammar(
    tools: readonly FunctionTool[],
    choice: Exclude<ChatCompletionToolChoiceOption, "none" | "auto">,
  ): GrammarSource | null;
}

/** A picture, a video or a sound of a chat, and the parameter that has it. */
export type ChatPicture = { readonly param: string } & (
  | { readonly kind: "picture"; readonly source: ImageSource }
  | { readonly kind: "video"; readonly source: VideoSource }
  | { readonly kind: "sound"; readonly source: SoundSource }
);

/** A file, or the address of one, or frames, of which a second has ``fps``. */
export type VideoSource = Blob | string | { readonly frames: readonly ImageSource[]; readonly fps: number };

/** The pictures of a chat: their texts, and their features. */
export interface ReadPictures {
  /** Puts the text of each picture in the place of its mark. */
  readonly write: WritePictures;
  /** The images at the placeholders of the prompt. Throws DeviceError, or the signal's reason. */
  place(ids: readonly number[], signal?: AbortSignal): Promise<readonly PromptImage[]>;
}

export interface Model extends Ears {
  readonly name: string;
  /** The most tokens of a prompt and its answer. */
  readonly context: number;
  readonly tokens: TokenSource;
  /** The tokens that end a turn. */
  readonly endTokenIds?: readonly number[] | undefined;
  /** Whether it has a decision head, and a chat template that writes the prompts of its questions alone. */
  readonly decides?: boolean | undefined;
  readonly text: TextCodec;
  readonly grammar?: GrammarProvider | undefined;
  readonly tools?: ToolFormat | undefined;
  /**
   * Decodes pictures; not defined if the model reads text only. Throws RequestError, which names the parameter, or the
   * signal's reason.
   */
  readonly readPictures?:
    | ((pictures: readonly ChatPicture[], signal?: AbortSignal) => Promise<ReadPictures>)
    | undefined;
  /** The names of the loaded LoRA adapters. */
  readonly adapters?: (() => readonly string[]) | undefined;
}

/** The model that a request names: with an adapter, if that is loaded under the name, or as it is. */
export function named(model: Model, name: string | null | undefined): Model {
  if (name == null || model.adapters?.().includes(name) !== true) return model;
  const { tokens } = model;
  return {
    ...model,
    name,
    tokens: { generateTokens: (request) => tokens.generateTokens({ ...request, adapter: name }) },
  };
}

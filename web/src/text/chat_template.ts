// Renders messages to the text of a prompt with a checkpoint's chat template, as transformers does.

import { BundleError, RequestError } from "../errors.js";
import type { ChatTreeEntry } from "../runtime/manifest.js";
import type { Marker } from "../shared/chat.js";
import { renderChat } from "../shared/chat.js";
import type { Tree } from "../shared/template/evaluate.js";
import { fromJs } from "../shared/template/json.js";
import type { WritePictures } from "./control_tokens.js";
import type { Tool, ToolFormat } from "./tools.js";
import { checkTools } from "./tools.js";

/** As in OpenAI's chat completions. */
export interface Message {
  readonly role: string;
  /** May be missing if there are tool_calls. */
  readonly content?: string | null | undefined;
  /** The assistant's reasoning before its answer. */
  readonly reasoning_content?: string | undefined;
  /** The assistant's calls, with arguments as JSON text or as an object. */
  readonly tool_calls?: readonly MessageToolCall[] | undefined;
  /** The id of the call that a message of role "tool" answers. */
  readonly tool_call_id?: string | undefined;
  readonly name?: string | undefined;
}

/** A message as templates receive it: a content with pictures is a list of parts. */
export interface RenderedMessage extends Omit<Message, "content"> {
  readonly content?: string | readonly MessagePart[] | null | undefined;
}

/** For a picture or a sound, a template writes a mark. */
export type MessagePart =
  | { readonly type: "text"; readonly text: string }
  | { readonly type: "image" | "audio" | "video" };

export interface MessageToolCall {
  readonly id?: string | undefined;
  readonly type: string;
  readonly function?: { readonly name: string; readonly arguments: unknown } | undefined;
}

export interface RenderOptions {
  readonly tools?: readonly Tool[] | undefined;
  /** Further variables of the template, such as enable_thinking. */
  readonly variables?: Readonly<Record<string, unknown>> | undefined;
  /** Writes the pictures of the messages. */
  readonly pictures?: WritePictures | undefined;
}

export class ChatTemplate {
  /**
   * ``entry`` is the syntax tree of ``source``, which the manifest holds; null if a browser cannot evaluate the template.
   * ``toolFormat`` is the template's format of tool calls; null if it has none or an unknown one.
   */
  constructor(
    private readonly source: string,
    private readonly entry: ChatTreeEntry | null,
    private readonly specialTokens: Readonly<Record<string, string>>,
    readonly toolFormat: ToolFormat | null = null,
  ) {}

  /**
   * The prompt's text up to the start of the answer, with sentinels wherever messages and tools could spell control
   * tokens. Throws RequestError for messages or tools that the template refuses, BundleError if the template fails.
   */
  render(
    messages: readonly RenderedMessage[],
    { tools = [], variables = {}, pictures }: RenderOptions = {},
    marker?: Marker,
  ): string {
    if (tools.length > 0) {
      checkTools(tools);
      if (this.toolFormat === null) {
        throw new RequestError(
          "This model's chat template has no tools, or writes calls in an unknown format; leave the tools out",
          { param: "tools" },
        );
      }
    }
    if (this.entry === null)
      throw new BundleError("This model's chat template has parts that only a server can evaluate; chat on a server");
    messages.forEach((message, index) => {
      requireText(message, index, pictures !== undefined);
    });
    const chat = {
      messages: messages.map(fromJs),
      tools: tools.length > 0 ? tools.map(fromJs) : null,
      variables: new Map(Object.entries(variables).map(([name, value]) => [name, fromJs(value)])),
      addGenerationPrompt: true,
    };
    const { source, specialTokens } = this;
    const { content } = this.entry;
    return renderChat(
      { source, tree: this.entry.tree as unknown as Tree, content, specialTokens },
      chat,
      new Date(),
      marker,
    );
  }
}

function requireText(message: RenderedMessage, index: number, withParts: boolean): void {
  const { role, content, tool_calls: calls } = message as Partial<Record<keyof Message, unknown>>;
  const hasCalls = Array.isArray(calls) && calls.length > 0;
  const isContent = typeof content === "string" || (withParts && Array.isArray(content));
  if (typeof role !== "string" || !(isContent || (hasCalls && (content ?? null) === null)))
    throw new RequestError(`messages[${index}] must be an object with the strings 'role' and 'content'`, { index });
}

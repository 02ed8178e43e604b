// Renders a checkpoint's Jinja chat template as transformers does, from messages to the text of a prompt.

import { Template } from "@huggingface/jinja";

import { BundleError, RequestError, messageOf } from "../errors.js";
import type { ControlTokens } from "./control_tokens.js";
import { SENTINEL } from "./control_tokens.js";
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

export interface MessageToolCall {
  readonly id?: string | undefined;
  readonly type: string;
  readonly function?: { readonly name: string; readonly arguments: unknown } | undefined;
}

export interface RenderOptions {
  readonly tools?: readonly Tool[] | undefined;
  /** Further variables of the template, such as enable_thinking. */
  readonly variables?: Readonly<Record<string, unknown>> | undefined;
}

export class ChatTemplate {
  readonly #template: Template;
  readonly #escapes: boolean;

  /**
   * ``toolFormat`` is the template's format of tool calls; null if it has none or an unknown one. Throws BundleError if
   * the source is not valid Jinja. The package sets trim_blocks and lstrip_blocks, as
   * transformers does.
   */
  constructor(
    private readonly source: string,
    private readonly specialTokens: Readonly<Record<string, string>>,
    readonly toolFormat: ToolFormat | null = null,
  ) {
    this.#escapes = source.includes("ensure_ascii");
    try {
      this.#template = new Template(source);
    } catch (error) {
      throw new BundleError(
        `chat template: ${messageOf(error)}; correct the checkpoint's chat template`,
        {},
        { cause: error },
      );
    }
  }

  /**
   * The prompt's text up to the start of the answer, with sentinels wherever messages and tools could spell control
   * tokens. Throws RequestError for messages or tools that the template refuses.
   */
  render(
    messages: readonly Message[],
    { tools = [], variables = {} }: RenderOptions = {},
    controls?: ControlTokens,
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
    const marked = (value: object): object => controls?.markObject(value) ?? value;
    const plain = messages.map((message, index) => marked(plainMessage(message, index)));
    const described = tools.length > 0 ? tools.map(marked) : null;
    const given: Record<string, unknown> = {
      messages: plain,
      tools: described,
      documents: null,
      add_generation_prompt: true,
      ...this.specialTokens,
    };
    for (const [name, value] of Object.entries(variables)) {
      if (name in given)
        throw new RequestError(`chat_template_kwargs cannot set '${name}', which the chat template has already`, {
          param: "chat_template_kwargs",
        });
      given[name] = controls?.markValue(value) ?? value;
    }
    try {
      const text = this.#template.render(withTools(this.source, given, plain));
      // tojson(ensure_ascii=true) escapes the sentinel; an even number of backslashes before it are literal
      // characters.
      return text.replace(/(?<!\\)((?:\\\\)*)\\ufdd0/g, this.#escapes ? `$1${SENTINEL}` : "$&");
    } catch (error) {
      throw new RequestError(`the chat template refuses these messages: ${messageOf(error)}`, {}, { cause: error });
    }
  }
}

/**
 * Adds the tools in the form that a template without the variable `tools` reads: SmolLM3 has the variable `xml_tools`
 * (its `python_tools` are a caller's own), and Phi-4-mini reads the functions as JSON from the system message. Callers
 * of transformers must add both themselves.
 */
function withTools(
  source: string,
  given: Readonly<Record<string, unknown>>,
  messages: readonly object[],
): Record<string, unknown> {
  const { tools } = given as { readonly tools: readonly Tool[] | null };
  if (tools === null) return given;
  if (/\bxml_tools\b/.test(source) && !("xml_tools" in given)) return { ...given, xml_tools: tools };
  if (!/message(\[['"]tools['"]\]|\.tools\b)/.test(source)) return given;
  const [first] = messages as readonly Message[];
  const [system, rest] =
    first?.role === "system" ? [first, messages.slice(1)] : [{ role: "system", content: "" }, messages];
  const functions = tools.map((tool) => tool.function);
  return { ...given, messages: [{ tools: pythonJson(functions), ...system }, ...rest] };
}

/** JSON as Python writes it, with spaces between its parts. */
function pythonJson(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(pythonJson).join(", ")}]`;
  if (typeof value !== "object" || value === null) return JSON.stringify(value);
  const members = Object.entries(value).filter(([, item]) => item !== undefined);
  return `{${members.map(([key, item]) => `${JSON.stringify(key)}: ${pythonJson(item)}`).join(", ")}}`;
}

/** Templates format arguments as JSON themselves, and concatenate contents with other texts. */
function plainMessage(message: Message, index: number): Message {
  const { role, content, tool_calls: calls } = message as Partial<Record<keyof Message, unknown>>;
  const hasCalls = Array.isArray(calls) && calls.length > 0;
  if (typeof role !== "string" || !(typeof content === "string" || (hasCalls && (content ?? null) === null))) {
    throw new RequestError(`messages[${index}] must be an object with the strings 'role' and 'content'`, { index });
  }
  if (!hasCalls) return message;
  const tool_calls = (calls as readonly MessageToolCall[]).map((call) => ({
    ...call,
    function: { name: call.function?.name ?? "", arguments: plainArguments(call, index) },
  }));
  return { ...message, content: message.content ?? "", tool_calls };
}

function plainArguments(call: MessageToolCall, index: number): unknown {
  const { name, arguments: given } = (call as Partial<MessageToolCall>).function ?? {
    name: undefined,
    arguments: undefined,
  };
  let value = given;
  try {
    if (typeof given === "string") value = JSON.parse(given === "" ? "{}" : given);
  } catch {
    value = undefined;
  }
  if (typeof name === "string" && typeof value === "object" && value !== null && !Array.isArray(value)) return value;
  const form = '{type: "function", function: {name, arguments}}, with the JSON of an object for arguments';
  throw new RequestError(`messages[${index}].tool_calls must be of ${form}`, { index });
}

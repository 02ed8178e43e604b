// Encodes OpenAI's messages and tools into the token ids of a prompt. Rejects content that a text model cannot read.

import { RequestError } from "../errors.js";
import type { Message } from "../text/chat_template.js";
import type { State } from "../text/reasoning.js";
import { asToolMessages } from "./functions.js";
import type { TextCodec } from "./model.js";
import { isEmpty, shown } from "./params.js";
import type { ChatCompletionMessageParam, FunctionTool } from "./types.js";

const ROLES: readonly string[] = [
  "system",
  "developer",
  "user",
  "assistant",
  "tool",
] satisfies ChatCompletionMessageParam["role"][];

// The first two are read separately. OpenAI's client adds "parsed", its parsed content, to an answer.
const SKIPPED: readonly string[] = ["role", "content", "parsed"];

export interface ChatPromptOptions {
  readonly tools?: readonly FunctionTool[] | undefined;
  /** The last message is the start of the answer. */
  readonly continueFinalMessage?: boolean | undefined;
  /** Additional variables of the chat template. */
  readonly variables?: Readonly<Record<string, unknown>> | undefined;
}

export interface ChatPrompt {
  readonly ids: readonly number[];
  /** Whether the answer begins with reasoning; "content" for a model that does not reason. */
  readonly state: State;
}

/** Throws RequestError, which names the wrong message. */
export function encodeChat(
  text: TextCodec,
  messages: readonly ChatCompletionMessageParam[],
  options: ChatPromptOptions = {},
): ChatPrompt {
  if (messages.length === 0)
    throw new RequestError("messages is empty; give it at least one message", { param: "messages" });
  const parsed = asToolMessages(messages).map(readMessage);
  const { reasoning } = text.thinking;
  const prompt = (rendered: readonly Message[]): ChatPrompt => {
    const ids = text.encodeChat(rendered, options);
    return { ids, state: reasoning?.stateAfter(ids) ?? "content" };
  };
  if (options.continueFinalMessage !== true) return prompt(parsed);
  const last = parsed.at(-1);
  if (last?.role !== "assistant") throw refused("continue_final_message", "needs an assistant's message at the end");
  // The template ends with the opening of an answer, so the start of the answer follows it.
  const { ids, state } = prompt(parsed.slice(0, -1));
  const content = last.content ?? "";
  const begun = reasoning?.begun(state, content, last.reasoning_content ?? "") ?? {
    ids: text.encode(content, false),
    state,
  };
  return { ids: [...ids, ...begun.ids], state: begun.state };
}

function readMessage(message: ChatCompletionMessageParam, index: number): Message {
  const where = `messages[${index}]`;
  const { role, content } = message;
  if (!ROLES.includes(role)) throw refused(where, `has role ${shown(role)}, it must be one of ${ROLES.join(", ")}`);
  const fields = Object.entries(message).filter(([key, value]) => !SKIPPED.includes(key) && !isEmpty(value));
  const {
    tool_calls: calls,
    reasoning,
    reasoning_content: reasoningContent = reasoning,
    ...rest
  } = Object.fromEntries(fields) as Partial<ChatCompletionMessageParam>;
  const unknown =
    Object.keys(rest).find((key) => key !== "name" && key !== "tool_call_id") ??
    (typeof (reasoningContent ?? "") === "string" ? undefined : "reasoning_content");
  if (unknown !== undefined) throw refused(where, `has '${unknown}', which is not supported`);
  return {
    ...rest,
    // Templates know system messages; developer is OpenAI's later name for them.
    role: role === "developer" ? "system" : role,
    content: readContent(content, where, role === "assistant" && (calls ?? reasoningContent) !== undefined),
    ...(role === "assistant" && reasoningContent && { reasoning_content: reasoningContent }),
    // Clients send back more fields of a call than templates should receive.
    ...(calls && {
      tool_calls: calls.map(({ id, type, function: called }) => ({
        id,
        type,
        function: called && { name: called.name, arguments: called.arguments },
      })),
    }),
  };
}

function readContent(content: ChatCompletionMessageParam["content"], where: string, isOptional: boolean): string {
  if (typeof content === "string") return content;
  if (isOptional && (content === null || content === undefined)) return "";
  if (!Array.isArray(content)) throw refused(`${where}.content`, "must be a string, or a list of parts");
  const parts: readonly unknown[] = content;
  return parts
    .map((part, index) => {
      const { type, text } = Object(part) as { type?: unknown; text?: unknown };
      if (type !== "text" || typeof text !== "string")
        throw refused(
          `${where}.content[${index}]`,
          `has type ${shown(type)}; this model reads parts of type "text" only`,
        );
      return text;
    })
    .join("");
}

function refused(where: string, problem: string): RequestError {
  return new RequestError(`${where} ${problem}`, { param: where });
}

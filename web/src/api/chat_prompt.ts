// Encodes OpenAI's messages and tools into the token ids of a prompt. Rejects content that a model cannot read.

import { RequestError } from "../errors.js";
import type { PromptImage } from "../engine/request.js";
import type { SoundSource } from "../audio/index.js";
import type { ImageSource } from "../images/index.js";
import { importAttachments } from "../runtime/import_later.js";
import type { MessagePart, RenderedMessage } from "../text/chat_template.js";
import type { State } from "../text/reasoning.js";
import { asToolMessages } from "./functions.js";
import type { ChatPicture, Model, VideoSource } from "./model.js";
import { isEmpty, shown } from "./params.js";
import type { ChatCompletionContentPart, ChatCompletionMessageParam, FunctionTool } from "./types.js";

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
  /** A prompt that starts with the same system messages and tools; undefined without any. */
  readonly prefix: (() => readonly number[]) | undefined;
  /** Whether the answer begins with reasoning; "content" for a model that does not reason. */
  readonly state: State;
  /** The images of the prompt, whose features the model computes. Throws DeviceError, or the signal's reason. */
  readonly images: (signal?: AbortSignal) => Promise<readonly PromptImage[]>;
  /** Adds the texts in the places of recordings to the chunks of the answer. */
  readonly report: <T extends object>(chunks: AsyncIterable<T>) => AsyncIterable<T>;
}

/** What a chat's prompt depends on. */
export type ChatModel = Pick<
  Model,
  "decides" | "text" | "context" | "readPictures" | "senses" | "transcribe" | "heard"
>;

/** Throws RequestError for a model whose template writes no chats. */
export function requireChats({ decides }: Pick<Model, "decides">): void {
  if (decides) throw new RequestError("This model generates no text; use decide");
}

/** Throws RequestError, which names the wrong message, or the signal's reason. */
export async function encodeChat(
  model: ChatModel,
  given: readonly ChatCompletionMessageParam[],
  options: ChatPromptOptions = {},
  signal?: AbortSignal,
): Promise<ChatPrompt> {
  requireChats(model);
  const { text, context, readPictures, ...ears } = model;
  const { messages, report } = given.some(hasAttachments)
    ? await (await importAttachments()).attachmentsAsText(given, ears, signal)
    : { messages: given, report: <T>(chunks: T): T => chunks };
  if (messages.length === 0)
    throw new RequestError("messages is empty; give it at least one message", { param: "messages" });
  const found: ChatPicture[] = [];
  const parsed = asToolMessages(messages).map((message, index) =>
    readMessage(message, index, readPictures === undefined || ears.senses?.sees === false ? null : found, found),
  );
  const pictures = found.length === 0 ? undefined : await readPictures?.(found, signal);
  const { reasoning } = text.thinking;
  const prompt = (rendered: readonly RenderedMessage[]): ChatPrompt => {
    const ids = text.encodeChat(rendered, { ...options, pictures: pictures?.write });
    return {
      ids,
      prefix: prefixOf(text, rendered, options),
      state: reasoning?.stateAfter(ids) ?? "content",
      // The engine refuses a prompt that is too long; nothing is computed for it.
      images: async (until) => (ids.length > context ? [] : (pictures?.place(ids, until) ?? [])),
      report,
    };
  };
  if (options.continueFinalMessage !== true) return prompt(parsed);
  const last = parsed.at(-1);
  if (last?.role !== "assistant") throw refused("continue_final_message", "needs an assistant's message at the end");
  // The template ends with the opening of an answer, so the start of the answer follows it.
  const start = prompt(parsed.slice(0, -1));
  const { ids, state } = start;
  const content = last.content ?? "";
  if (typeof content !== "string") throw refused("continue_final_message", "continues a text, not pictures");
  const begun = reasoning?.begun(state, content, last.reasoning_content ?? "") ?? {
    ids: text.encode(content, false),
    state,
  };
  return { ...start, ids: [...ids, ...begun.ids], state: begun.state };
}

/** See `ChatPrompt.prefix`. */
export function prefixOf(
  text: Pick<Model["text"], "encodeChat">,
  messages: readonly RenderedMessage[],
  options?: ChatPromptOptions,
): ChatPrompt["prefix"] {
  const system = messages.filter(({ role }) => role === "system");
  if (system.length === 0 && !options?.tools?.length) return undefined;
  return () => text.encodeChat([...system, { role: "user", content: "" }], options);
}

const ATTACHED = /^(?:file|(?:input_)?audio)$/;

/** Whether its content has files or recordings. */
const hasAttachments = ({ content }: ChatCompletionMessageParam): boolean =>
  Array.isArray(content) &&
  content.some((part: unknown) => ATTACHED.test(String((Object(part) as { type?: unknown }).type)));

/** ``pictures`` receives those of the message, null if the model sees none; ``sounds`` those that it hears. */
function readMessage(
  message: ChatCompletionMessageParam,
  index: number,
  pictures: ChatPicture[] | null,
  sounds: ChatPicture[],
): RenderedMessage {
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
    content: readContent(
      content,
      where,
      role === "assistant" && (calls ?? reasoningContent) !== undefined,
      pictures,
      sounds,
    ),
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

function readContent(
  content: ChatCompletionMessageParam["content"],
  where: string,
  isOptional: boolean,
  pictures: ChatPicture[] | null,
  sounds: ChatPicture[],
): string | readonly MessagePart[] {
  if (typeof content === "string") return content;
  if (isOptional && (content === null || content === undefined)) return "";
  if (!Array.isArray(content)) throw refused(`${where}.content`, "must be a string, or a list of parts");
  const parts = content.map((part: unknown, index) => readPart(part, `${where}.content[${index}]`, pictures, sounds));
  return parts.every((part) => part.type === "text") ? parts.map(({ text }) => text).join("") : parts;
}

function readPart(part: unknown, where: string, pictures: ChatPicture[] | null, sounds: ChatPicture[]): MessagePart {
  const { type, text, image_url: address, image, audio } = Object(part) as Readonly<Record<string, unknown>>;
  if (type === "text" && typeof text === "string") return { type, text };
  // attachments.js leaves only sounds that the model hears.
  if (type === "audio") {
    sounds.push({ kind: "sound", source: audio as SoundSource, param: where });
    return { type };
  }
  if (type === "video_url" || type === "video") {
    if (pictures === null)
      throw refused(
        where,
        "is a video, and this model reads texts only; leave it out, or load a model that reads videos",
      );
    pictures.push({ kind: "video", source: videoOf(part, where), param: `${where}.${type}` });
    return { type: "video" };
  }
  if (type !== "image_url" && type !== "image")
    throw refused(
      where,
      `has type ${shown(type)}; this model reads parts of type "text"${pictures ? ' or "image_url"' : " only"}`,
    );
  if (pictures === null)
    throw refused(where, "is a picture, and this model reads texts only; leave it out, or load a model that sees");
  const source = type === "image" ? image : (Object(address) as { url?: unknown }).url;
  if (type === "image" ? !source || typeof source !== "object" : typeof source !== "string")
    throw refused(
      where,
      'needs a picture: {type: "image_url", image_url: {url}}, or {type: "image", image} with a Blob, ImageBitmap or ImageData',
    );
  pictures.push({ kind: "picture", source: source as ImageSource, param: `${where}.${type}` });
  return { type: "image" };
}

function videoOf(part: unknown, where: string): VideoSource {
  const { type, video_url: address, video, frames, fps } = Object(part) as Partial<ChatCompletionContentPart>;
  const url: unknown = (Object(address) as { url?: unknown }).url;
  if (type === "video_url" && typeof url === "string") return url;
  if (type === "video" && video instanceof Blob) return video;
  if (type === "video" && Array.isArray(frames) && typeof fps === "number") return { frames, fps };
  throw refused(
    where,
    'needs a video: {type: "video_url", video_url: {url}}, {type: "video", video} with a Blob, or {type: "video", frames, fps}',
  );
}

function refused(where: string, problem: string): RequestError {
  return new RequestError(`${where} ${problem}`, { param: where });
}

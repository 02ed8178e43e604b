// Converts a text or messages to messages of text, pictures and sound, or throws the exception of the specification:
// https://webmachinelearning.github.io/prompt-api, "validate and canonicalize a prompt".

import type { ChatCompletionContentPart } from "../api/types.js";
import type { ToolCall } from "./tools.js";

export interface LanguageModelMessageContent {
  readonly type: string;
  readonly value: unknown;
}

export interface LanguageModelMessage {
  readonly role: "system" | "user" | "assistant";
  readonly content: string | readonly LanguageModelMessageContent[];
  /** If true, this message is the start of the answer. It must be the last message, and an assistant's. */
  readonly prefix?: boolean | undefined;
}

export type LanguageModelPrompt = string | readonly LanguageModelMessage[];

/** A message of a conversation. Only the session itself adds tool calls and their results, never a prompt. */
export interface TextMessage {
  readonly role: LanguageModelMessage["role"] | "tool";
  /** A list of parts if there are pictures or sound, which only the user's messages have. */
  readonly content: string | readonly ChatCompletionContentPart[];
  readonly prefix: boolean;
  readonly calls?: readonly ToolCall[];
  /** For a tool's result, the id of the call. */
  readonly callId?: string;
}

/** What a session expects of the user's messages besides text. */
export interface ExpectedMedia {
  readonly image: boolean;
  readonly audio: boolean;
}

/**
 * ``isFirst``: the session is still empty, so a system message is allowed. Throws TypeError or DOMException, as the
 * specification requires.
 */
export function canonicalPrompt(
  input: LanguageModelPrompt,
  isFirst: boolean,
  expected: ExpectedMedia,
): readonly TextMessage[] {
  if (typeof input === "string") return [{ role: "user", content: input, prefix: false }];
  if (input.length === 0) return canonicalPrompt("", isFirst, expected);
  return input.map(({ role, content, prefix = false }, index) => {
    if (!["system", "user", "assistant"].includes(role))
      throw new TypeError(`A message's role is '${role}', it must be system, user or assistant`);
    if (role === "system" && !(isFirst && index === 0))
      throw new TypeError("A system message can only be the very first of a session");
    if (prefix && (role !== "assistant" || index < input.length - 1)) {
      throw new DOMException("Only the last message can be a prefix, and only an assistant's", "SyntaxError");
    }
    if (typeof content === "string") return { role, content, prefix };
    const parts = content.map((part) => partOf(part, role === "user" ? expected : NOTHING));
    const isText = parts.every(({ type }) => type === "text");
    return { role, content: isText ? parts.map(({ text = "" }) => text).join("") : parts, prefix };
  });
}

const NOTHING: ExpectedMedia = { image: false, audio: false };

function partOf({ type, value }: LanguageModelMessageContent, expected: ExpectedMedia): ChatCompletionContentPart {
  if (type === "image" && expected.image) return { type, image: pictureOf(value) };
  if (type === "audio" && expected.audio) return { type, audio: soundOf(value) };
  if (type !== "text")
    throw new DOMException(
      `Content of type '${type}' is not supported; the session reads text, and of the user what it expects: images, audio`,
      "NotSupportedError",
    );
  if (typeof value !== "string") throw new TypeError("Content of type 'text' must have a string for its value");
  return { type, text: value };
}

const isBytes = (value: unknown): value is BufferSource => value instanceof ArrayBuffer || ArrayBuffer.isView(value);

/** An AudioBuffer, or a file or its bytes. What the page may change later is copied. */
function soundOf(value: unknown): NonNullable<ChatCompletionContentPart["audio"]> {
  if (value instanceof Blob) return value;
  if (isBytes(value)) return new Blob([value]);
  const sound = Object(value) as AudioBuffer;
  if (!("getChannelData" in sound))
    throw new TypeError("Content of type 'audio' must have an AudioBuffer, a Blob or a buffer for its value");
  const { numberOfChannels, sampleRate } = sound;
  const channels = Array.from({ length: numberOfChannels }, (_, index) => sound.getChannelData(index).slice());
  const [first] = channels;
  return { samples: first !== undefined && channels.length === 1 ? first : channels, sampleRate };
}

/** An ImageBitmapSource, or the bytes of a file. */
function pictureOf(value: unknown): NonNullable<ChatCompletionContentPart["image"]> {
  if (isBytes(value)) return new Blob([value]);
  if (typeof value !== "object" || value === null)
    throw new TypeError("Content of type 'image' must have an ImageBitmapSource or a buffer for its value");
  return value as Blob;
}

// Which values of a request are searched for private patterns: the texts that a person or a program wrote. A value is
// described by what it is:
//
//     "text"       a text
//     "prompt"     a text that meets its neighbours in the prompt: it is searched together with them
//     "url"        the address of an image or a video, without its base64 bytes, in which a pattern would match only by
//                  chance
//     "bytes"      the same, or base64 alone
//     "json"       any JSON: all of its texts, keys and numbers, because a number is as private as its digits
//     "json_text"  JSON in a text: the text itself, and its strings and numbers, without escapes
//     "none"       a parameter that selects: nothing to search in a word, a flag or a number below 1000
//     "skip"       nothing to search: what never leaves, or ids of tokens
//     {...}        an object: its keys in the order of the prompt; "*" describes any other key and is searched with it
//
// A list is described by its items. Several descriptions, in a list, are for values of several kinds (a text, an object),
// or for all that one text is. A key that is not described, and a value of another kind, are not searched.
//
// A number is searched as JavaScript writes it, and an integer also by all of its digits. A page has lost the last digits
// of an integer above 2^53 before it asks; a request to Python has its own.

import type { Media } from "./media.js";
import { mediaOf } from "./media.js";

type Leaf = "text" | "prompt" | "url" | "bytes" | "json" | "json_text" | "none" | "skip";
/** Of a value, of the keys of an object, or of values of several kinds. */
export type Description = Leaf | Keys | readonly Description[];
type Keys = { readonly [key in string]: Description };

const JSON_FORM = ["json", "json_text"] as const;
const FUNCTION = { name: "prompt", arguments: ["prompt", "json_text"], "*": "json" } as const;
const PART = {
  type: "none",
  text: "prompt",
  refusal: "prompt",
  image_url: { url: "url", detail: "none", "*": "json" },
  video_url: { url: "url", "*": "json" },
  frames: "url",
  input_audio: { data: "bytes", format: "none", "*": "json" },
  file: { filename: "text", file_data: "bytes", "*": "json" },
  "*": "json",
} as const;
/** Chat templates write a name before the content, and calls after it. */
const MESSAGE = {
  role: "none",
  labels: "skip",
  name: "prompt",
  reasoning_content: "prompt",
  reasoning: "prompt",
  content: ["prompt", PART],
  refusal: "prompt",
  tool_call_id: "text",
  tool_calls: { id: "text", type: "none", index: "none", function: FUNCTION, "*": "json" },
  function_call: FUNCTION,
  "*": "json",
} as const;
const TOOL_FUNCTION = { name: "text", description: "text", parameters: "json", strict: "none", "*": "json" } as const;
const FORMAT = {
  type: "none",
  json_schema: { name: "text", description: "text", schema: "json", strict: "none", "*": "json" },
  pattern: "text",
  grammar: "text",
  "*": "json",
} as const;
/** Of all kinds of requests: chats, completions, embeddings, rankings. */
export const PRIVATE_TEXTS: Keys = {
  messages: MESSAGE,
  prompt: ["prompt", "skip"],
  input: "json",
  query: "text",
  documents: "json",
  context: "text",
  questions: "json",
  calibration: "json",
  suffix: "text",
  middle: "text",
  input_extra: "json",
  tools: { type: "none", function: TOOL_FUNCTION, "*": "json" },
  functions: TOOL_FUNCTION,
  function_call: { name: "text", "*": "json" },
  tool_choice: { type: "none", function: { name: "text", "*": "json" }, "*": "json" },
  response_format: FORMAT,
  structured_outputs: { json: JSON_FORM, regex: "text", choice: "text", grammar: "text", json_object: "none" },
  guided_json: JSON_FORM,
  guided_regex: "text",
  guided_choice: "text",
  guided_grammar: "text",
  chat_template_kwargs: "json",
  stop: "text",
  user: "text",
  metadata: "json",
  prediction: "json",
  safety_identifier: "text",
  prompt_cache_key: "text",
  prompt_name: "text",
};

/** What a parameter selects. */
const WORD = /^[a-z_-]{0,32}$/;
const BEFORE_BYTES = /^data:[^,]*;base64,/;
/**
 * A string of JSON, without its quotes, or a number. A string that does not end ends with the text, so that the time is
 * linear.
 */
const JSON_VALUE = /"([^"\\]*(?:\\[^][^"\\]*)*)(?:"|\\?$)|(-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)/g;

/** ``meets``: in the prompt it meets the texts beside it. */
export interface PrivateText {
  readonly text: string;
  readonly meets: boolean;
}

export interface RequestTexts {
  /** The texts of each message in the order of the prompt; none if its content is all of them. */
  readonly parts: readonly (readonly string[])[];
  /** All other texts, which meet no text of a prompt. */
  readonly texts: readonly string[];
  /** What is not text, in which nothing can be searched. */
  readonly media: readonly Media[];
}

/**
 * The texts and media of a request whose messages have these ``contents``, each the message's texts joined by nothing.
 */
export function requestTexts(
  { messages = [], ...rest }: { readonly messages?: readonly unknown[]; readonly [key: string]: unknown },
  contents: readonly string[],
): RequestTexts {
  const found = messages.map((message) => [...privateTexts({ messages: [message] })]);
  const others = [...privateTexts(rest)];
  const meeting = found.map((texts) => texts.filter(({ meets, text }) => meets && text !== "").map(({ text }) => text));
  return {
    parts: meeting.map((parts, index) => (parts.length === 1 && parts[0] === contents[index] ? [] : parts)),
    texts: [...found.flat(), ...others].filter(({ meets }) => !meets).map(({ text }) => text),
    // The parts of a message may meet in the middle of bytes.
    media: mediaOf(messages, [...[...found.flat(), ...others].map(({ text }) => text), ...contents]),
  };
}

/** The texts of a request that are searched. */
export function* privateTexts(
  value: unknown,
  description: Description = PRIVATE_TEXTS,
): Generator<PrivateText, void, undefined> {
  const kinds: readonly Description[] = Array.isArray(description) ? description : [description];
  const all = function* (inner: unknown) {
    for (const text of textsWithin(inner)) yield { text, meets: false };
  };
  const isSkipped = kinds.includes("skip");
  if (typeof value === "string") {
    const kind = ["prompt", "text", "url", "bytes", "json_text", "json"].find((each) => kinds.includes(each as Leaf));
    const text = kind === "url" || kind === "bytes" ? withoutBytes(value, kind === "bytes") : value;
    if (kind !== undefined || !(isSkipped || WORD.test(value))) yield { text, meets: kind === "prompt" };
    if (kinds.includes("json_text")) for (const text of textsWithinText(value)) yield { text, meets: false };
  } else if (kinds.includes("json")) yield* all(value);
  else if (Array.isArray(value)) for (const item of value) yield* privateTexts(item, description);
  else if (isSkipped) return;
  else if (typeof value === "number" || typeof value === "bigint") {
    const selects = kinds.includes("none") && value >= 0 && value < 1000;
    if (!selects) yield* all(value);
  } else if (typeof value === "object" && value !== null) {
    const entries = Object.entries(value).filter(([, inner]) => inner !== undefined && inner !== null);
    const keyed = kinds.filter((kind): kind is Keys => typeof kind === "object");
    if (keyed.length === 0) yield* all(value);
    for (const keys of keyed) {
      const { "*": others, ...known } = keys;
      for (const [key, inner] of Object.entries(known)) {
        const given = entries.find(([name]) => name === key);
        if (given !== undefined) yield* privateTexts(given[1], inner);
      }
      if (others !== undefined) yield* all(Object.fromEntries(entries.filter(([key]) => !Object.hasOwn(known, key))));
    }
  }
}

/** All texts, keys and numbers of a JSON value of any depth. */
function* textsWithin(root: unknown): Generator<string, void, undefined> {
  const pending = [root];
  while (pending.length > 0) {
    const value = pending.pop();
    if (typeof value === "string") yield value;
    else if (typeof value === "number" || typeof value === "bigint") yield* numberTexts(value);
    else if (Array.isArray(value)) for (const part of value) pending.push(part);
    else if (typeof value === "object" && value !== null) {
      for (const [key, part] of Object.entries(value)) if (part !== undefined) pending.push(key, part);
    }
  }
}

/** The strings and numbers of JSON in a text, without their escapes; of a text that is not JSON, what looks so. */
function* textsWithinText(json: string): Generator<string, void, undefined> {
  for (const [, string, number = ""] of json.matchAll(JSON_VALUE)) {
    if (string !== undefined) yield unescaped(string);
    else {
      yield number;
      yield* numberTexts(Number(number));
    }
  }
}

/**
 * A URL without its base64 bytes; ``isBare``: it may also be these alone. One that only claims to be base64 is searched as
 * text.
 */
function withoutBytes(url: string, isBare: boolean): string {
  const head = BEFORE_BYTES.exec(url)?.[0] ?? (isBare ? "" : undefined);
  if (head === undefined) return url;
  // QuickJS finds the first other character in a fifth of the time that it takes to match all bytes.
  const other = /[^A-Za-z0-9+/]/g;
  other.lastIndex = head.length;
  const rest = other.exec(url);
  return rest === null || /^={1,2}$/.test(url.slice(rest.index)) ? head : url;
}

/** A string of JSON without its escapes, or as it is if they are not JSON's. */
function unescaped(string: string): string {
  if (!string.includes("\\")) return string;
  try {
    return String(JSON.parse(`"${string}"`));
  } catch {
    return string;
  }
}

/** A number, and an integer by all of its digits. */
function* numberTexts(value: number | bigint): Generator<string, void, undefined> {
  const number = Number(value);
  yield String(number);
  if (Number.isInteger(number) && Math.abs(number) > 2 ** 53) yield String(BigInt(number));
  if (typeof value === "bigint") yield String(value);
}

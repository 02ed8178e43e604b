// The arguments of a request as JSON can hold them. What it cannot hold is refused by name.

import type { ChatCompletionContentPart, ChatCompletionMessageParam } from "../api/types.js";
import { RequestError } from "../errors.js";

/** Replaces a Map, such as ``logitBias`` of `generate`. */
interface StoredMap {
  readonly nearfarMap: readonly (readonly [unknown, unknown])[];
}

/** Options that a later page sets itself. */
const OF_THE_PAGE: readonly string[] = ["signal"];

/** The arguments; pictures and videos of the page become addresses with their bytes. Throws RequestError. */
export async function storedArgs(args: readonly unknown[]): Promise<readonly unknown[]> {
  const stored: unknown[] = [];
  for (const arg of args) {
    const messages = Array.isArray(arg) ? arg : (arg as { readonly messages?: unknown } | null)?.messages;
    const sent = await withSentPictures(messages);
    const own = sent === messages ? arg : Array.isArray(arg) ? sent : { ...(arg as object), messages: sent };
    stored.push(storedValue(own, "", true));
  }
  return stored;
}

/** The arguments that `storedArgs` returned. */
export function readArgs(args: readonly unknown[]): readonly unknown[] {
  return args.map(readValue);
}

/** Two requests with the same text have the same answer. How it is delivered does not matter. */
export function requestText(api: string, args: readonly unknown[]): string {
  const sorted = (value: unknown): unknown => {
    if (Array.isArray(value)) return value.map(sorted);
    if (typeof value !== "object" || value === null) return value;
    const entries = Object.entries(value).sort(([one], [other]) => (one < other ? -1 : 1));
    return Object.fromEntries(entries.map(([key, part]) => [key, sorted(part)]));
  };
  const asked = args.map((arg) =>
    typeof arg === "object" && arg !== null && !Array.isArray(arg)
      ? { ...arg, stream: null, stream_options: null }
      : arg,
  );
  return JSON.stringify(sorted([api, ...asked]));
}

async function withSentPictures(messages: unknown): Promise<unknown> {
  const isOfPage = ({ content }: Pick<ChatCompletionMessageParam, "content">): boolean =>
    Array.isArray(content) &&
    (content as readonly ChatCompletionContentPart[]).some(
      ({ image, video, frames, image_url: picture, video_url: film }) =>
        (image ?? video ?? frames) !== undefined || [picture, film].some((file) => /^blob:/i.test(String(file?.url))),
    );
  if (!Array.isArray(messages) || !messages.some(isOfPage)) return messages;
  const { sentMessages } = await import("../images/index.js");
  return sentMessages(messages as readonly ChatCompletionMessageParam[]);
}

function storedValue(value: unknown, path: string, isTop = false): unknown {
  if (value === null || typeof value === "string" || typeof value === "boolean") return value;
  if (typeof value === "number" && Number.isFinite(value)) return value;
  const inside = (key: string | number): string => (path === "" ? String(key) : `${path}.${key}`);
  if (Array.isArray(value)) return value.map((part, index) => storedValue(part ?? null, inside(index)));
  if (value instanceof Map) {
    const nearfarMap = [...value].map(
      ([key, part]) => [key as unknown, storedValue(part, inside(String(key)))] as const,
    );
    return { nearfarMap } satisfies StoredMap;
  }
  if (typeof value === "object" && isPlain(value)) {
    const kept = Object.entries(value).filter(
      ([key, part]) => part !== undefined && !(isTop && OF_THE_PAGE.includes(key)),
    );
    return Object.fromEntries(kept.map(([key, part]) => [key, storedValue(part, inside(key))]));
  }
  const kind = typeof value === "object" ? value.constructor.name : `a ${typeof value}`;
  throw new RequestError(
    `${path} is ${kind}, which cannot be kept for a later page; replace it with text or numbers, or leave the id out`,
    { param: path },
  );
}

function readValue(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(readValue);
  if (typeof value !== "object" || value === null) return value;
  if (isStoredMap(value)) return new Map(value.nearfarMap);
  return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, readValue(part)]));
}

/** Parameters may have the key as a name of their own, such as that of a tool's argument. */
function isStoredMap(value: object): value is StoredMap {
  const { nearfarMap, ...others } = value as Partial<StoredMap>;
  return Array.isArray(nearfarMap) && Object.keys(others).length === 0;
}

function isPlain(value: object): boolean {
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === Object.prototype || prototype === null;
}

// The media of a request: its pictures, recordings and files. The policy's `private.media` says whether they may leave the
// device. In those that are not text, no private pattern can be searched.

import type { PrivateRules } from "./policy_schema.js";

/** In which nothing can be searched. "file": any part that is neither a text nor of another kind. */
export type OpaqueKind = "picture" | "video" | "sound" | "file";
/** "text": a file of text, which became a text of its message. */
export type MediaKind = OpaqueKind | "text";

/**
 * A part of a message. Its indices are null for what no model reads: the bytes of a `data:` address within a text, and an
 * input that is not a text.
 */
export interface Media {
  readonly kind: MediaKind;
  readonly message: number | null;
  readonly part: number | null;
}

const WORDS: Readonly<Record<MediaKind, string>> = {
  picture: "a picture",
  video: "a video",
  sound: "a recording",
  file: "a file",
  text: "a file of text",
};
const OF_BYTES: Readonly<Record<string, MediaKind>> = { audio: "sound", video: "video" };
// A type may have parameters with commas and spaces: "video/webm; codecs=vp8,opus".
const BYTES_IN_TEXT = /data:(image|video|audio)\\?\/[^:]*?;base64,[\w+/-]/i;

/** The media of these messages, and of ``texts``, all texts of their request. */
export function mediaOf(messages: readonly unknown[], texts: Iterable<string>): readonly Media[] {
  const found = messages.flatMap((message, index) => {
    const { content } = Object(message) as { readonly content?: unknown };
    return Array.isArray(content)
      ? content.flatMap((part: unknown, at) => {
          const kind = kindOf(part);
          return kind === null ? [] : [{ kind, message: index, part: at }];
        })
      : [];
  });
  const within = new Set<MediaKind>();
  for (const text of texts) {
    const kind = BYTES_IN_TEXT.exec(text)?.[1];
    if (kind !== undefined) within.add(OF_BYTES[kind.toLowerCase()] ?? "picture");
  }
  return [...found, ...Array.from(within, (kind) => ({ kind, message: null, part: null }))];
}

/** Null for a text. */
function kindOf(part: unknown): MediaKind | null {
  const parts = Object(part) as Readonly<Record<string, unknown>>;
  const { type, image_url: address, video_url: film, input_audio: audio, file } = parts;
  const isText = type === "text" || type === "refusal";
  if (isText && [address, film, audio, file].every((value) => value === undefined || value === null)) return null;
  return type === "image_url" || type === "image"
    ? "picture"
    : type === "video_url" || type === "video"
      ? "video"
      : type === "input_audio" || type === "audio"
        ? "sound"
        : "file";
}

/** Those in which nothing can be searched. */
export function opaque<M extends Media>(media: readonly M[]): readonly (M & { readonly kind: OpaqueKind })[] {
  return media.filter((each): each is M & { readonly kind: OpaqueKind } => each.kind !== "text");
}

/** What a side must read to answer: videos, sound, and for any other part that is not text pictures. */
export function needs(media: readonly Media[]): Readonly<Record<"vision" | "video" | "sound", boolean>> {
  const kinds = opaque(media).flatMap(({ kind, part }) => (part === null ? [] : [kind]));
  const vision = kinds.some((kind) => kind !== "video" && kind !== "sound");
  return { vision, video: kinds.includes("video"), sound: kinds.includes("sound") };
}

/**
 * Whether the policy keeps the request on the device because of its media: with "near" of any, with null only of those in
 * which nothing can be searched.
 */
export function isKept({ media: rule }: Pick<PrivateRules, "media">, media: readonly Media[]): boolean {
  return rule !== "far" && (rule === "near" ? media : opaque(media)).length > 0;
}

/** Whether near can turn all media into texts, and the policy lets only such texts leave. */
export function canDescribe(
  { media: rule }: Pick<PrivateRules, "media">,
  media: readonly Media[],
  kinds: readonly MediaKind[],
): boolean {
  const described = opaque(media);
  return (
    rule === "describe" &&
    described.length > 0 &&
    described.every(({ kind, part }) => part !== null && kinds.includes(kind))
  );
}

/** Names the first one and where it is: "a picture (messages[0].content[1])". Files of text come last. */
export function mediaWords(media: readonly Media[]): string {
  const [first] = [...opaque(media), ...media];
  if (first === undefined) return "nothing";
  const { kind, message, part } = first;
  return `${WORDS[kind]} (${message === null ? "in one of its texts or inputs" : mediaPath({ message, part })})`;
}

export function mediaPath({ message, part }: Pick<Media, "message" | "part">): string {
  return `messages[${String(message)}].content[${String(part)}]`;
}

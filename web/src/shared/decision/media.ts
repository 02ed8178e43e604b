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

export type OpaqueMedia = Media & { readonly kind: OpaqueKind };

const WORDS: Readonly<Record<MediaKind, string>> = {
  picture: "a picture",
  video: "a video",
  sound: "a recording",
  file: "a file",
  text: "a file of text",
};
const OF_BYTES: Readonly<Record<string, MediaKind>> = { image: "picture", audio: "sound", video: "video" };
// A type may have parameters with commas, colons and spaces, "video/webm; codecs=vp8,opus", or be missing. Patterns are not
// searched in base64, so that of a text is a file as well. The type is matched within (?=...), which is not matched again
// in another way, so that the time is linear.
const ADDRESS = /data:(?=([\w.+-]*))(?:[^:]*?|[^]{0,99}?);\s*base64,(?:[\w+/%-]|\s+[\w+/-]{16})/gi;
// Bytes that are written as text, "%89PNG" or "<svg". Files of text are searched as such.
const WRITTEN = /data:(image|audio|video)\/[\w.+-]+(?:;(?!base64,)[\w.+-]+(?:=[\w.+-]*)?){0,9},[\w%<]/gi;
// In base64 without an address, as tools return it in JSON: how files begin that are PNG, JPEG, GIF, BMP, TIFF; RIFF (WebP,
// WAV, AVI), PDF, ID3 (MP3), Ogg, FLAC, MP4, Matroska or ZIP.
const PICTURE = /(?<![\w+/])(?:iVBORw0KGgo|\\?[/_]9j\\?[/_]|R0lGOD|Qk[\w+/-]{6}AAAAA|SUkqA|TU0AK)[\w+/\\-]{48}/;
const FILE = /(?<![\w+/])(?:UklGR|JVBERi0|SUQz|T2dnUw|ZkxhQ|AAAA[\w+/]{2}Z0eX|GkXfo|UEsDB)[\w+/\\-]{48}/;

// Fields of a part that is a text; servers cache and cite it.
const OF_TEXTS: readonly string[] = ["type", "text", "refusal", "cache_control", "annotations"];
// Fields of messages in which clients of other servers send bytes, and OpenAI the id of a recording that was an answer.
const FIELDS = ["image", "images", "audio", "audios", "video", "videos", "file", "files", "attachments"];

const UNREADABLE: Media = { kind: "file", message: null, part: null };

/** The media of these messages, and of ``texts``, all texts of their request. */
export function mediaOf(messages: readonly unknown[], texts: Iterable<string>): readonly Media[] {
  const found = messages.flatMap((message, index): readonly Media[] => {
    const { content, ...rest } = Object(message) as Readonly<Record<string, unknown>>;
    const isOdd = typeof content === "object" && content !== null && !Array.isArray(content);
    const others = isOdd || FIELDS.some((name) => !isReference(rest[name])) ? [UNREADABLE] : [];
    if (!Array.isArray(content)) return others;
    const parts = content.flatMap((part: unknown, at) => {
      const kind = kindOf(part);
      return kind === null ? [] : [{ kind, message: index, part: at }];
    });
    return [...parts, ...others];
  });
  const within = new Set<MediaKind>();
  for (const text of texts) {
    for (const address of [ADDRESS, WRITTEN])
      for (const [, type = ""] of text.matchAll(address)) within.add(OF_BYTES[type.toLowerCase()] ?? "file");
    if (within.size > 0) continue;
    if (PICTURE.test(text)) within.add("picture");
    if (FILE.test(text)) within.add("file");
  }
  return [...found, ...Array.from(within, (kind) => ({ kind, message: null, part: null }))];
}

/** Whether a value is empty. */
function isBlank(value: unknown): boolean {
  return (
    value === undefined ||
    value === null ||
    value === "" ||
    (typeof value === "object" && !ArrayBuffer.isView(value) && Object.keys(value).length === 0)
  );
}

/** Whether a value is empty, or names by an id what a server has. */
function isReference(value: unknown): boolean {
  return isBlank(value) || Object.keys(Object(value) as object).every((key) => key === "id");
}

/** Null for a text. */
function kindOf(part: unknown): MediaKind | null {
  const parts = Object(part) as Readonly<Record<string, unknown>>;
  const { type } = parts;
  const isText = type === "text" || type === "refusal";
  // What stands beside a text may hold bytes.
  if (isText && Object.entries(parts).every(([key, value]) => OF_TEXTS.includes(key) || isBlank(value))) return null;
  return type === "image_url" || type === "image"
    ? "picture"
    : type === "video_url" || type === "video"
      ? "video"
      : type === "input_audio" || type === "audio"
        ? "sound"
        : "file";
}

/** Those in which nothing can be searched. */
export function opaque(media: readonly Media[]): readonly OpaqueMedia[] {
  return media.filter((each): each is OpaqueMedia => each.kind !== "text");
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

/**
 * The media in whose places far would get texts that near makes of them (``kinds``: of which it can): with "describe" all
 * in which nothing can be searched, or none if one of them cannot become a text. If media may leave, they leave
 * themselves, except recordings for a far side that does not hear.
 */
export function standIns(
  { media: rule }: Pick<PrivateRules, "media">,
  media: readonly Media[],
  kinds: readonly MediaKind[],
  farHears: boolean,
): readonly OpaqueMedia[] {
  if (rule !== "describe" && (farHears || isKept({ media: rule }, media))) return [];
  const found = opaque(media).filter(({ kind, part }) => rule === "describe" || (kind === "sound" && part !== null));
  return found.every(({ kind, part }) => part !== null && kinds.includes(kind)) ? found : [];
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

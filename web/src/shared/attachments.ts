// The attachments of messages: how many and how large they may be, and how files of text and transcripts of sound read in
// a prompt. Only `BOUNDS` concerns pictures and videos.

import { RequestError } from "../errors.js";
import { unreadableKind } from "./file_kinds.js";

/** Of one request, on both sides. */
export const BOUNDS = {
  pictures: 16,
  /** The width times the height of a picture: a photo of 48 megapixels, whose pixels take 144 MB. */
  picture_pixels: 50_000_000,
  videos: 4,
  video_bytes: 32 * 2 ** 20,
  video_seconds: 600,
  video_fps: 240,
  /** The width times the height of a frame: 4K. */
  video_pixels: 4096 * 2304,
  files: 16,
  file_bytes: 2 ** 20,
  sounds: 4,
  sound_bytes: 25 * 2 ** 20,
  sound_seconds: 600,
} as const;

const TEXT_TYPE = /^(?:text\/(?:plain|(?:x-)?markdown|csv)|application\/json)$/;
const TEXT_NAME = /\.(?:txt|md|markdown|json|csv)$/i;
/** Types of a file that do not say what it is. */
const ANY_TYPE = ["", "application/octet-stream"];
const READ = "text, Markdown, JSON and CSV are read; send its text";

export interface OpenedFile {
  readonly name: string;
  /** The character of `file_data` with which its base64 begins. */
  readonly start: number;
}

/**
 * A part of the type "file", of which ``head`` is the first 1024 characters of its `file_data`; null without any. Throws
 * RequestError for a file that is not of text.
 */
export function openFile(filename: string | null, head: string | null, where: string): OpenedFile {
  // A name is one line of the prompt.
  const name = (filename ?? "").replace(/\s+/g, " ").trim().slice(0, 255) || "file";
  if (head === null)
    throw refused(where, `has no file_data, and no files are stored here; send data:text/plain;base64,...`);
  const isAddress = /^data:/i.test(head);
  const comma = head.indexOf(",");
  if (isAddress && !/^data:[^,]*;base64,/i.test(head))
    throw refused(where, "has file_data that is not base64; write data:text/plain;base64,...");
  const type = isAddress ? (/^data:([^;,]*)/i.exec(head)?.[1] ?? "").toLowerCase() : "";
  if (!TEXT_TYPE.test(type) && !(ANY_TYPE.includes(type) && TEXT_NAME.test(name)))
    throw refused(where, `is '${name}'${type && ` of type '${type}'`}: ${READ}`);
  return { name, start: isAddress ? comma + 1 : 0 };
}

/**
 * The texts before and after the content of a file of ``bytes`` bytes; ``start``: its first 16 bytes, each as a
 * character. ``isText``: it is UTF-8 without the character 0. Throws RequestError.
 */
export function fileMarks(
  name: string,
  { bytes, start, isText }: { readonly bytes: number; readonly start: string; readonly isText: boolean },
  where: string,
): readonly [before: string, after: string] {
  if (bytes > BOUNDS.file_bytes)
    throw refused(where, `is '${name}' of ${bytes} bytes; at most ${BOUNDS.file_bytes} are read; send a part of it`);
  const kind = isText ? unreadableKind(name, start) : (unreadableKind(name, start) ?? "is not text in UTF-8");
  if (kind !== null) throw refused(where, `is '${name}', which ${kind.split(";", 1)[0] ?? ""}: ${READ}`);
  return [`[File: ${name}]\n`, `\n[End of file: ${name}]\n`];
}

/** Throws RequestError for more attachments of a kind than a request may have. */
export function requireFew(kind: "files" | "sounds", count: number): void {
  if (count > BOUNDS[kind])
    throw new RequestError(`The messages have ${count} ${kind}; send at most ${BOUNDS[kind]}`, { param: "messages" });
}

/** What a prompt has in the place of a recording. */
export function transcriptText(transcript: string): string {
  const text = transcript.trim();
  return text === "" ? "[A recording without speech]\n" : `[Transcript of a recording]\n${text}\n[End of transcript]\n`;
}

/** For a recording, if nothing transcribes it. ``what``: what to do about it. */
export function unheard(where: string, what: string): RequestError {
  return refused(where, `is a recording, and this model hears nothing; ${what}`);
}

function refused(where: string, problem: string): RequestError {
  return new RequestError(`${where} ${problem}`, { param: where });
}

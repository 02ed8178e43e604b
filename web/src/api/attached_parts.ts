// Parts of messages for the attachments of other libraries, which name a media type and have base64 or bytes.

import { RequestError, messageOf } from "../errors.js";
import type { ChatCompletionContentPart } from "./types.js";

export interface Attached {
  /** Such as "audio/wav", or its first half alone. */
  readonly mediaType: string;
  readonly data: string | Uint8Array;
  readonly filename?: string | undefined;
}

/** What a server reads of sound. */
const WAV = /^audio\/(?:x-|vnd\.)?wave?(?:;|$)/;
const MP3 = /^audio\/(?:x-)?(?:mpeg|mp3)(?:;|$)/;

export const isAudio = (mediaType: string): boolean => /^audio(?:\/|$)/i.test(mediaType);

export function base64Of(data: string | Uint8Array): string {
  if (typeof data === "string") return data;
  let text = "";
  for (const byte of data) text += String.fromCharCode(byte);
  return btoa(text);
}

/** A picture or a video at this address. */
export function seenPart(kind: "image" | "video", url: string): ChatCompletionContentPart {
  return kind === "image" ? { type: "image_url", image_url: { url } } : { type: "video_url", video_url: { url } };
}

/** WAV and MP3 as a server reads them, other recordings as files of the page. Throws RequestError for damaged base64. */
export function soundPart({ mediaType, data }: Attached): ChatCompletionContentPart {
  const type = mediaType.toLowerCase();
  if (WAV.test(type) || MP3.test(type))
    return { type: "input_audio", input_audio: { data: base64Of(data), format: MP3.test(type) ? "mp3" : "wav" } };
  try {
    const bytes = typeof data === "string" ? Uint8Array.from(atob(data), (byte) => byte.charCodeAt(0)) : data;
    return { type: "audio", audio: new Blob([bytes as BlobPart], { type }) };
  } catch (error) {
    throw new RequestError(`A recording is not base64: ${messageOf(error)}`, { param: "messages" }, { cause: error });
  }
}

/** Any other file. An engine reads text, and refuses others by their names; a far side may read them. */
export function filePart({ mediaType, data, filename }: Attached): ChatCompletionContentPart {
  const isWhole = mediaType.includes("/") && !mediaType.endsWith("/*");
  const type = isWhole ? mediaType : mediaType.startsWith("text") ? "text/plain" : "application/octet-stream";
  return { type: "file", file: { filename, file_data: `data:${type};base64,${base64Of(data)}` } };
}

/** A file of this text. */
export function textFilePart(text: string, mediaType: string, filename?: string): ChatCompletionContentPart {
  return filePart({ mediaType, data: new TextEncoder().encode(text), filename });
}

// Descriptions: the texts that stand for a request's media where the policy lets only such texts leave the device.

import type { NearfarError } from "../../errors.js";
import { RequestError, Unavailable } from "../../errors.js";
import type { Media, OpaqueKind } from "./media.js";
import { mediaWords } from "./media.js";

/** How near is asked for the description of a picture or a video: greedily, so that each has one description. */
export function describing(kind: OpaqueKind): { readonly prompt: string; readonly max_tokens: number } {
  const what = kind === "video" ? "this video, and what happens in it," : "this picture";
  return {
    prompt: `Describe ${what} for someone who cannot see it, in at most three sentences. Quote any text in it word for word.`,
    max_tokens: 160,
  };
}

const MARKS: Readonly<Record<OpaqueKind, string>> = {
  picture: "Picture, described on the user's device",
  video: "Video, described on the user's device",
  sound: "Sound, transcribed on the user's device",
  file: "File, read on the user's device",
};

/** What far receives instead of the picture, the video or the sound. */
export function describedText(kind: OpaqueKind, text: string): string {
  return `[${MARKS[kind]}: ${text.trim()}]`;
}

/** The error of media that could not be described. ``isRequest``: the same request would fail again. */
export function undescribed(media: Media, why: string, isRequest: boolean): NearfarError {
  return new (isRequest ? RequestError : Unavailable)(
    `the request has ${mediaWords([media])}, which was not described on this device, so it was not sent far: ${why}`,
    { code: "undescribed" },
  );
}

// The track of pictures in a file: its codec, and where each frame is. `webm.ts` and `mp4.ts` read them.

import { RequestError } from "../errors.js";

export interface Sample {
  /** In any unit: only the order of times counts. */
  readonly time: number;
  readonly offset: number;
  readonly size: number;
  /** It needs no other one. */
  readonly isKey: boolean;
}

export interface Track {
  /** As WebCodecs names it. */
  readonly codec: string;
  readonly description: Uint8Array | null;
  readonly fps: number;
  /** Samples of earlier times are decoded, but not shown. */
  readonly start: number;
  /** Quarters of a turn, clockwise. */
  readonly turns: number;
  /** In the order in which they are decoded. */
  readonly samples: readonly Sample[];
}

export const damagedVideo = (cause?: unknown): RequestError =>
  new RequestError("videos: the video is damaged or incomplete; send it again", {}, { cause });

export const noPictures = (): RequestError =>
  new RequestError("videos: the video has sound alone; send it as input_audio");

const twoDigits = (number: number): string => String(number).padStart(2, "0");

/** The name of H.264 with the settings in an avcC box. */
export const avcName = (box: Uint8Array): string =>
  `avc1.${Array.from(box.subarray(1, 4), (byte) => byte.toString(16).padStart(2, "0")).join("")}`;

/** The name of AV1 with the settings in an av1C box. */
export function av1Name(box: Uint8Array): string {
  const [, level = 0, flags = 0] = box;
  const depth = (flags & 0x40) > 0 ? ((flags & 0x20) > 0 ? 12 : 10) : 8;
  return `av01.${level >> 5}.${twoDigits(level & 31)}${flags >> 7 > 0 ? "H" : "M"}.${twoDigits(depth)}`;
}

export const vp9Name = (profile: number, level: number, depth: number): string =>
  `vp09.${twoDigits(profile)}.${twoDigits(level)}.${twoDigits(depth)}`;

/** The name of H.265 with the settings in an hvcC box (ISO/IEC 14496-15, annex E). */
export function hevcName(box: Uint8Array): string {
  const view = new DataView(box.buffer, box.byteOffset, box.byteLength);
  const first = view.getUint8(1);
  let [compatible, reversed] = [view.getUint32(2), 0];
  for (let bit = 0; bit < 32; bit++, compatible >>>= 1) reversed = ((reversed << 1) | (compatible & 1)) >>> 0;
  const constraints = Array.from(box.subarray(6, 12));
  while (constraints.at(-1) === 0) constraints.pop();
  const profile = `${["", "A", "B", "C"][first >> 6] ?? ""}${first & 31}`;
  const level = `${(first & 0x20) > 0 ? "H" : "L"}${view.getUint8(12)}`;
  return ["hvc1", profile, reversed.toString(16), level, ...constraints.map((byte) => byte.toString(16))].join(".");
}

// What names a picture's features: the SHA-256 of this text in UTF-8, followed by its pixels, three bytes each. That of a
// video is followed by those of its frames as they were resized, one after the other.

import type { ImageSpec } from "../../runtime/manifest.js";

/** ``frames``: those of a video, 0 for a picture, which does not depend on how videos are read. */
export function imageKeyHead(spec: ImageSpec, width: number, height: number, frames = 0): string {
  const { video, ...still } = spec;
  return frames > 0 ? keyHead({ ...still, video }, width, height, frames) : keyHead(still, width, height);
}

/** A spec and sizes as text, which is the same in Python and in the page. */
export function keyHead(spec: object, ...sizes: readonly number[]): string {
  // Python and JSON order keys as they were declared, and write some numbers in another way.
  const sorted = (_: string, value: unknown): unknown =>
    typeof value === "object" && value !== null && !Array.isArray(value)
      ? Object.fromEntries(Object.entries(value).sort(([left], [right]) => (left < right ? -1 : 1)))
      : value;
  return `${JSON.stringify(spec, sorted)} ${sizes.join(" ")}\n`;
}

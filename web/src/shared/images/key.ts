// What names a picture's features: the SHA-256 of this text in UTF-8, followed by its pixels, three bytes each.

import type { ImageSpec } from "../../runtime/manifest.js";

export function imageKeyHead(spec: ImageSpec, width: number, height: number): string {
  // Python and JSON order keys as they were declared, and write some numbers in another way.
  const sorted = (_: string, value: unknown): unknown =>
    typeof value === "object" && value !== null && !Array.isArray(value)
      ? Object.fromEntries(Object.entries(value).sort(([left], [right]) => (left < right ? -1 : 1)))
      : value;
  return `${JSON.stringify(spec, sorted)} ${width} ${height}\n`;
}

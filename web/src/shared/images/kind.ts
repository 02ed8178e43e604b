// What files of pictures are, by their first bytes.

/* oxlint-disable no-control-regex -- the first bytes of files */
const UNREADABLE: readonly (readonly [RegExp, string])[] = [
  [
    /^(?:\xef\xbb\xbf)?\s*<(?:\?xml|!--|!DOCTYPE svg|svg)/i,
    "is an SVG, which has no pixels of its own; convert it to PNG",
  ],
  [/^....ftyp(?:heic|heix|hevc|hevx)/s, "is a HEIC file, which is not supported; convert it to JPEG"],
  [/^....ftypavis/s, "is animated, which is not supported; send one of its pictures"],
  [/^(?:II\*\0|MM\0\*)/s, "is a TIFF file, which browsers do not read; convert it to PNG"],
  [/^%PDF-/, "is a PDF; send its pages as PNG"],
];
/* oxlint-enable no-control-regex */

/**
 * The rest of a sentence that begins with "the picture": what it is, and what to do; null if it may be read. ``start``:
 * its first 1024 bytes, each as a character.
 */
export function unreadablePicture(start: string): string | null {
  return UNREADABLE.find(([head]) => head.test(start))?.[1] ?? null;
}

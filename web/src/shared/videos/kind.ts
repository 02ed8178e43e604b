// What files of videos are, by their first bytes.

/** How a file is read. */
export type Container = "mp4" | "webm";

export interface VideoKind {
  readonly container: Container | null;
  /** The rest of a sentence that begins with "the video": what it is, and what to do; null if it may be read. */
  readonly problem: string | null;
}

/* oxlint-disable no-control-regex -- the first bytes of files */
const MP4 = /^....(?:ftyp|moov|mdat|free|skip|wide)/s;
const WEBM = /^\x1a\x45\xdf\xa3/;
const OTHERS: readonly (readonly [RegExp, string])[] = [
  [
    /^(?:\x89PNG|\xff\xd8\xff|GIF8|BM|RIFF....WEBP|....ftyp(?:avif|avis|mif1|hei[cx]))/s,
    "is a picture; send it as image_url",
  ],
  [
    /^(?:ID3|\xff[\xfb\xf3\xf2\xf1\xf9]|fLaC|RIFF....WAVE|....ftypM4A )/s,
    "is a recording without pictures; send it as input_audio",
  ],
  [/^OggS/, "is an Ogg file, which is not supported; convert it to WebM or MP4"],
  [/^RIFF....AVI /s, "is an AVI file, which is not supported; convert it to MP4 or WebM"],
  [/^\s*(?:<|#EXTM3U)/, "is a text, not a video; send an MP4 or WebM file"],
];
/* oxlint-enable no-control-regex */

/** ``start``: the first 1024 bytes of a file of ``bytes`` bytes, each as a character. */
export function videoKind(start: string, bytes: number): VideoKind {
  if (bytes === 0) return { container: null, problem: "is empty; send it again" };
  const other = OTHERS.find(([head]) => head.test(start));
  if (other !== undefined) return { container: null, problem: other[1] };
  if (MP4.test(start)) return { container: "mp4", problem: null };
  if (!WEBM.test(start)) return { container: null, problem: "has an unknown format; send an MP4 or WebM file" };
  return { container: "webm", problem: segmentEnd(start) > bytes ? "is incomplete; send all of it" : null };
}

/** Where the segment of a Matroska file ends, as it says itself; 0 if it does not say it (RFC 8794, RFC 9559). */
function segmentEnd(start: string): number {
  for (let at = 0; at < start.length - 12;) {
    const [id, body] = vint(start, at, true);
    const [size, content] = vint(start, body, false);
    if (id === 0x18538067) return size === null ? 0 : content + size;
    if (size === null || id === null) return 0;
    at = content + size;
  }
  return 0;
}

/** A number of 1 to 8 bytes, and the offset after it; null for an unknown size. */
function vint(text: string, at: number, marked: boolean): readonly [value: number | null, next: number] {
  const first = text.charCodeAt(at);
  const length = Math.clz32(first) - 23;
  if (!(length >= 1 && length <= 8)) return [null, at + 1];
  let value = marked ? first : first & (0xff >> length);
  let isUnknown = !marked && value === 0xff >> length;
  for (let index = 1; index < length; index++) {
    const byte = text.charCodeAt(at + index);
    value = value * 256 + byte;
    isUnknown &&= byte === 0xff;
  }
  return [isUnknown ? null : value, at + length];
}

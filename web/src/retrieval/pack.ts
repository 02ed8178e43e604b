// Packs blocks into passages: neighbouring blocks of one section become one passage as long as it stays short enough,
// and a longer block is divided between sentences, then between words, then between graphemes.

import type { Block, Passage } from "./document.js";

/** The passages of ``text``, in its order, each at most ``maxCharacters`` long. */
export function pack(text: string, blocks: readonly Block[], maxCharacters: number): Passage[] {
  const packed: Block[] = [];
  for (const block of blocks.flatMap((each) => divide(text, each, maxCharacters))) {
    const last = packed.at(-1);
    if (last !== undefined && isSame(last.headings, block.headings) && block.end - last.start <= maxCharacters)
      packed[packed.length - 1] = { ...last, end: block.end };
    else packed.push(block);
  }
  return packed.map((block) => ({ ...block, text: text.slice(block.start, block.end) }));
}

function isSame(first: readonly string[], second: readonly string[]): boolean {
  return first.length === second.length && first.every((heading, index) => heading === second[index]);
}

const GRANULARITIES = ["sentence", "word", "grapheme"] as const;
/** In UTF-16 units. V8 copies the text for each of its segments, so it gets a long text in windows. */
const WINDOW = 1024;
/** Where a segment ends may depend on this number of units after it. */
const LOOKAHEAD = 64;

function divide(text: string, block: Block, maxCharacters: number, level = 0): Block[] {
  if (block.end - block.start <= maxCharacters) return [block];
  const granularity = GRANULARITIES[level];
  // One grapheme may be longer than any limit.
  if (granularity === undefined) return [block];
  const segmenter = new Intl.Segmenter("en", { granularity });
  const parts: Block[] = [];
  let start = block.start;
  for (const end of segmentEnds(text.slice(block.start, block.end), segmenter)) {
    const piece = { ...block, start, end: block.start + end };
    start = piece.end;
    const last = parts.at(-1);
    if (last !== undefined && piece.end - last.start <= maxCharacters)
      parts[parts.length - 1] = { ...last, end: piece.end };
    else parts.push(piece);
  }
  return parts.flatMap((part) => divide(text, part, maxCharacters, level + 1)).flatMap((part) => trimmed(text, part));
}

/** The offsets at which the segments of ``text`` end. */
export function* segmentEnds(text: string, segmenter: Intl.Segmenter): Generator<number> {
  let window = WINDOW;
  for (let from = 0; from < text.length;) {
    const part = text.slice(from, from + window);
    const known = from + window < text.length ? part.length - LOOKAHEAD : part.length;
    let end = 0;
    for (const { index, segment } of segmenter.segment(part)) {
      if (index + segment.length > known) break;
      end = index + segment.length;
      yield from + end;
    }
    from += end;
    window = end === 0 ? 2 * window : WINDOW;
  }
}

/** The block without white space at its ends; nothing if there is nothing else. */
function trimmed(text: string, block: Block): Block[] {
  const part = text.slice(block.start, block.end);
  const start = block.start + part.length - part.trimStart().length;
  const end = block.start + part.trimEnd().length;
  return end > start ? [{ ...block, start, end }] : [];
}

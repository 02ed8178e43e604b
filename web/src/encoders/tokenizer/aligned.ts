// A text while it is normalized: its characters, each with the place in the original text that it stands for.

import { UNDECOMPOSED } from "./unicode_tables.js";

/** ``starts`` and ``ends`` are indexes of the original string, as `slice` has them. */
export interface Aligned {
  readonly chars: readonly string[];
  readonly starts: readonly number[];
  readonly ends: readonly number[];
}

export type UnicodeForm = "NFC" | "NFD" | "NFKC" | "NFKD";

/** Characters that the normalization may join with the character before them. */
const JOINING = /^[\p{M}\u1160-\u11ff\u3131-\u318e\uff9e-\uff9f\uffa0-\uffdc]$/u;

/** The characters of the part of a text from ``offset`` on. */
export function alignedText(part: string, offset = 0): Aligned {
  const chars = Array.from(part);
  const starts: number[] = [];
  let end = offset;
  const ends = chars.map((character) => {
    starts.push(end);
    return (end += character.length);
  });
  return { chars, starts, ends };
}

export function slice({ chars, starts, ends }: Aligned, from: number, to?: number): Aligned {
  return { chars: chars.slice(from, to), starts: starts.slice(from, to), ends: ends.slice(from, to) };
}

/** Replaces each character by others, which stand for the same place; "" removes it. */
export function replaceEach(text: Aligned, replacement: (character: string) => string): Aligned {
  const result = { chars: [] as string[], starts: [] as number[], ends: [] as number[] };
  text.chars.forEach((character, index) => {
    for (const other of replacement(character)) {
      result.chars.push(other);
      result.starts.push(text.starts[index] ?? 0);
      result.ends.push(text.ends[index] ?? 0);
    }
  });
  return result;
}

/** Replaces ranges of characters: each new character stands for the old one at its index, or for the last one. */
export function replaceRanges(
  text: Aligned,
  ranges: readonly { readonly from: number; readonly to: number; readonly by: string }[],
): Aligned {
  if (ranges.length === 0) return text;
  const result = { chars: [] as string[], starts: [] as number[], ends: [] as number[] };
  const put = (character: string, index: number): void => {
    result.chars.push(character);
    result.starts.push(text.starts[index] ?? 0);
    result.ends.push(text.ends[index] ?? 0);
  };
  let done = 0;
  for (const { from, to, by } of ranges) {
    for (; done < from; done++) put(text.chars[done] ?? "", done);
    Array.from(by).forEach((character, index) => {
      put(character, Math.min(from + index, to - 1));
    });
    done = to;
  }
  for (; done < text.chars.length; done++) put(text.chars[done] ?? "", done);
  return result;
}

/** Unicode's normalization, except of characters that the tokenizers library leaves alone. */
export function normalizeForm(text: Aligned, form: UnicodeForm): Aligned {
  const { chars } = text;
  const ranges: { from: number; to: number; by: string }[] = [];
  for (let from = 0, to = 1; from < chars.length; from = to, to++) {
    if (UNDECOMPOSED.has(chars[from]?.codePointAt(0) ?? 0)) continue;
    while (to < chars.length && JOINING.test(chars[to] ?? "") && !UNDECOMPOSED.has(chars[to]?.codePointAt(0) ?? 0))
      to++;
    const before = chars.slice(from, to);
    const by = before.join("").normalize(form);
    if (by === before.join("")) continue;
    // Each character's own decomposition stands for it.
    const each = before.map((character) => character.normalize(form));
    if (each.join("") === by)
      each.forEach((own, index) => ranges.push({ from: from + index, to: from + index + 1, by: own }));
    else ranges.push({ from, to, by });
  }
  return replaceRanges(text, ranges);
}

// Which passages support an answer: those that the model cites by number, or else those that share a sentence's words.

import { wordsOf } from "../../src/retrieval/words.js";
import type { Source } from "./sources.js";

/** A part of an answer, and the numbers of the passages that it cites. ``matched``: the page found them, by words. */
export interface CitedPart {
  readonly text: string;
  readonly numbers: readonly number[];
  readonly matched: boolean;
}

/** A sentence is supported by a passage that has this share of its words. */
const LEAST_SHARE = 0.6;
const SENTENCES = new Intl.Segmenter("en", { granularity: "sentence" });
const MARK = /\s*\[(\d{1,3}(?:\s*,\s*\d{1,3})*)\]/g;

/** The answer's sentences without the model's marks. Numbers that name no source are left in the text. */
export function citedParts(answer: string, sources: readonly Source[]): readonly CitedPart[] {
  const known = new Set(sources.map(({ number }) => number));
  const words = sources.map(({ number, passage }) => ({ number, words: new Set(wordsOf(passage.text)) }));
  return sentencesOf(answer).map((sentence) => {
    const cited = new Set<number>();
    const text = sentence.replace(MARK, (mark, list: string) => {
      const numbers = list.split(",").map(Number);
      if (!numbers.every((number) => known.has(number))) return mark;
      for (const number of numbers) cited.add(number);
      return "";
    });
    if (cited.size > 0) return { text, numbers: [...cited], matched: false };
    const best = supporting(wordsOf(text), words);
    return { text, numbers: best === null ? [] : [best], matched: best !== null };
  });
}

/** Marks that follow the end of a sentence belong to it. */
function sentencesOf(answer: string): readonly string[] {
  const parts: string[] = [];
  for (const { segment } of SENTENCES.segment(answer)) {
    const last = parts.pop();
    // Marks at the start of a segment, or nothing else in it.
    const marks = last === undefined ? "" : (/^(?:\s*\[\d[\d,\s]*\])+\s*/.exec(segment)?.[0] ?? "");
    const rest = segment.slice(marks.length);
    if (last !== undefined) parts.push(`${last}${marks}`);
    if (rest !== "") parts.push(rest);
  }
  return parts;
}

function supporting(
  sentence: readonly string[],
  passages: readonly { readonly number: number; readonly words: ReadonlySet<string> }[],
): number | null {
  const wanted = [...new Set(sentence)];
  if (wanted.length < 2) return null;
  let best: number | null = null;
  let most = LEAST_SHARE * wanted.length;
  for (const { number, words } of passages) {
    const shared = wanted.filter((word) => words.has(word)).length;
    if (shared >= most && (best === null || shared > most)) [best, most] = [number, shared];
  }
  return best;
}

// Features: the numbers that the predictor reads from the last user message, the same in both languages.
//
// Text features follow ASCII's rules for every script: [0-9] are digits, and ASCII's white space separates words.
// Counts are log1p values. Buckets count words and pairs of adjacent words by a hash, so that a predictor knows phrases
// without a list of them.

import type { SituationMessage } from "./situation.js";

export type TextFeature =
  "characters" | "words" | "digits" | "numbers" | "longest_number" | "sentences" | "commas" | "question" | "ands";

const SPACES = "[ \\t\\n\\r\\f\\v]";
const WORD = /[^ \t\n\r\f\v]+/g;
const SENTENCE_END = new RegExp(`[.!?](?=${SPACES}|$)`, "g");
const QUESTION = new RegExp(`\\?${SPACES}*$`);
const FNV_OFFSET = 0x811c9dc5;
const FNV_PRIME = 0x01000193;

/** The text from which features are computed; empty if there is no user message. */
export function lastUserText(messages: readonly SituationMessage[]): string {
  return messages.findLast(({ role }) => role === "user")?.content ?? "";
}

export function textFeatures(text: string): Readonly<Record<TextFeature, number>> {
  const count = (pattern: RegExp): number => text.match(pattern)?.length ?? 0;
  const numbers = (text.match(/[0-9]+/g) ?? []).map((run) => run.length);
  const log = Math.log1p;
  return {
    characters: log(Array.from(text).length),
    words: log(count(WORD)),
    digits: log(numbers.reduce((sum, length) => sum + length, 0)),
    numbers: log(numbers.length),
    longest_number: log(numbers.reduce((most, length) => Math.max(most, length), 0)),
    sentences: log(count(SENTENCE_END)),
    commas: log(count(/,/g)),
    question: QUESTION.test(text) ? 1 : 0,
    ands: log((text.match(/[A-Za-z]+/g) ?? []).filter((word) => lower(word) === "and").length),
  };
}

/**
 * Counts the terms in each bucket; empty buckets are left out. Terms are lowercased words, numbers as one "#" for each
 * digit, and each two adjacent terms joined by a space. The hash is FNV-1a of 32 bits: Fowler, Noll and Vo,
 * draft-eastlake-fnv.
 */
export function bucketCounts(text: string, buckets: number): ReadonlyMap<number, number> {
  const counts = new Map<number, number>();
  if (buckets === 0) return counts;
  const words = (lower(text).match(/[a-z]+|[0-9]+/g) ?? []).map((term) =>
    /^[0-9]/.test(term) ? "#".repeat(term.length) : term,
  );
  const pairs = words.slice(1).map((right, index) => `${words[index] ?? ""} ${right}`);
  for (const term of [...words, ...pairs]) {
    const bucket = fnv1a(term) % buckets;
    counts.set(bucket, (counts.get(bucket) ?? 0) + 1);
  }
  return counts;
}

/** Terms are ASCII, so a character is a byte. */
function fnv1a(term: string): number {
  let digest = FNV_OFFSET;
  for (let index = 0; index < term.length; index++)
    digest = Math.imul(digest ^ term.charCodeAt(index), FNV_PRIME) >>> 0;
  return digest;
}

function lower(text: string): string {
  return text.replace(/[A-Z]+/g, (letters) => letters.toLowerCase());
}

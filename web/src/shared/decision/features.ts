// Features: the numbers that the predictor reads from the last user message.
//
// Text features follow ASCII's rules for every script: [0-9] are digits, and ASCII's white space separates words.
// Counts are log1p values. Terms are words and pairs of adjacent words; a predictor has a weight for each term that it
// knows.
//
// The last five features describe the shape of a text instead of its topic, so that they mean the same in topics that a
// fit has not seen.

import type { SituationMessage } from "./situation.js";

const SPACES = "[ \\t\\n\\r\\f\\v]";
const WORD = /[^ \t\n\r\f\v]+/g;
const SENTENCE_END = new RegExp(`[.!?](?=${SPACES}|$)`, "g");
const CLAUSE_END = new RegExp(`[.!?;](?=${SPACES}|$)`, "g");
const QUESTION = new RegExp(`\\?${SPACES}*$`);
const SYMBOL = /[#$%&*+/<=>@[\\\]^_{|}~]/g;

/** The text from which features are computed; empty if there is no user message. */
export function lastUserText(messages: readonly SituationMessage[]): string {
  return messages.findLast(({ role }) => role === "user")?.content ?? "";
}

/**
 * The extras are signs of a task with several steps: numbers beyond two, digits of the longest number beyond three, and
 * sentences, which a semicolon ends too, beyond one. A word is [a-z]+ here, in either case; a text without words has 0 of
 * what words show. ``letters`` are words of one letter that are not English, such as variables.
 */
export function textFeatures(text: string): Readonly<Record<string, number>> {
  const count = (pattern: RegExp): number => text.match(pattern)?.length ?? 0;
  const numbers = (text.match(/[0-9]+/g) ?? []).map((run) => run.length);
  const words = lower(text).match(/[a-z]+/g) ?? [];
  const longest = numbers.reduce((most, length) => Math.max(most, length), 0);
  const log = Math.log1p;
  const beyond = (least: number, value: number): number => log(Math.max(0, value - least));
  return {
    characters: log(text.length - count(/[\ud800-\udbff][\udc00-\udfff]/g)),
    words: log(count(WORD)),
    digits: log(numbers.reduce((sum, length) => sum + length, 0)),
    numbers: log(numbers.length),
    longest_number: log(longest),
    sentences: log(count(SENTENCE_END)),
    commas: log(count(/,/g)),
    question: QUESTION.test(text) ? 1 : 0,
    ands: log(words.filter((word) => word === "and").length),
    thens: log(words.filter((word) => word === "then").length),
    extra_numbers: beyond(2, numbers.length),
    extra_digits: beyond(3, longest),
    extra_sentences: beyond(1, count(CLAUSE_END)),
    longest_line: log(text.split("\n").reduce((most, line) => Math.max(most, line.length), 0)),
    symbols: log(count(SYMBOL)),
    letters: log(words.filter((word) => /^[^ai]$/.test(word)).length),
    word_length: words.reduce((sum, word) => sum + word.length, 0) / Math.max(1, words.length),
    distinct_words: new Set(words).size / Math.max(1, words.length),
  };
}

/**
 * The lowercased words [a-z]+ and numbers, as one "#" for each digit, in their order; then each two adjacent ones,
 * joined by a space.
 */
export function textTerms(text: string): readonly string[] {
  const words = (lower(text).match(/[a-z]+|[0-9]+/g) ?? []).map((term) =>
    /^[0-9]/.test(term) ? "#".repeat(term.length) : term,
  );
  return [...words, ...words.slice(1).map((right, index) => `${words[index] ?? ""} ${right}`)];
}

function lower(text: string): string {
  return text.replace(/[A-Z]+/g, (letters) => letters.toLowerCase());
}

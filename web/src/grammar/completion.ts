// Searches for a short text that completes the answer so far. The search leaves the matcher as it was.

import { hasBit } from "./constraint.js";
import type { Vocabulary } from "./vocabulary.js";
import type { GrammarMatcher } from "./wasm.js";

// Characters that close something, then those that keep a text short. For JSON, this order finds nearly the shortest
// text.
const FIRST = '}]",:0123456789ntf-{[';
const CLOSERS = [...Array.from(FIRST), ...printable()];
// The maximum length of a text, and the number of texts that may be tried for it, for one round after another. JSON
// needs no backtracking; other grammars may.
const ROUNDS: readonly (readonly [number, number])[] = [
  [2, 250],
  [8, 500],
  [64, 1500],
  [512, 4000],
];
// Limits of the search without backtracking. A character that repeats more often than LONGEST_RUN is a loop.
const STRAIGHT_TRIALS = 10_000;
const LONGEST_RUN = 60;
const LONGEST_TEXT = 4096;
// The number of preceding characters that identify where two completions become equal.
const LONGEST_SAME = 8;
// Longer tokens rarely shorten a text.
const LONGEST_TOKEN = 24;

/** A completion of an answer: tokens that end its last character, then a text. */
export interface Ending {
  readonly head: readonly number[];
  readonly text: string;
}

/**
 * A completion that is short, but not necessarily the shortest; null if none is found. ``pending`` is the number of
 * bytes that the answer's last character lacks. ``endings`` are texts that may end a part that could continue for ever.
 * ``known`` completed the answer before its last token; the new completion often ends in the same way.
 */
export function findCompletion(
  matcher: GrammarMatcher,
  pending: number,
  endings: readonly string[],
  maxTrials = Infinity,
  known = "",
): Ending | null {
  if (pending === 0) {
    const text = findText(matcher, endings, maxTrials, known);
    return text === null ? null : { head: [], text };
  }
  const { tokens } = matcher.vocabulary;
  const mask = matcher.mask();
  for (let id = 0; id < tokens.length; id++) {
    const bytes = tokens[id];
    if (
      !hasBit(mask, id) ||
      bytes === undefined ||
      bytes.length === 0 ||
      bytes.length > pending ||
      !bytes.every(isContinuation)
    )
      continue;
    if (!matcher.acceptToken(id)) continue;
    const rest = findCompletion(matcher, pending - bytes.length, endings, maxTrials, known);
    matcher.rollback(1);
    return rest === null ? null : { head: [id, ...rest.head], text: rest.text };
  }
  return null;
}

export function completes(matcher: GrammarMatcher, text: string): boolean {
  if (text === "") return matcher.complete();
  if (!matcher.acceptText(text)) return false;
  const complete = matcher.complete();
  matcher.rollback(1);
  return complete;
}

/** The number of bytes that the last character lacks after ``bytes``, if it lacked ``pending`` before them. */
export function pendingBytes(pending: number, bytes: Uint8Array): number {
  return bytes.reduce(
    (left, byte) =>
      isContinuation(byte) ? Math.max(left - 1, 0) : byte < 0xc0 ? 0 : byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3,
    pending,
  );
}

function isContinuation(byte: number): boolean {
  return (byte & 0xc0) === 0x80;
}

function findText(
  matcher: GrammarMatcher,
  endings: readonly string[],
  maxTrials: number,
  known: string,
): string | null {
  if (matcher.complete()) return "";
  const trials = Math.min(STRAIGHT_TRIALS, maxTrials);
  // A string in which any text is allowed ends with a quote, once its required characters are there. An ending with its
  // quote is tried first, because the ending of one format may be accepted again and again in another format's string.
  const ends = ['"', ...endings.map((ending) => ending + '"'), ...endings, ...CLOSERS];
  for (const texts of [CLOSERS, ends]) {
    const straight = new Search(matcher, texts, trials, false, known).from("", LONGEST_TEXT);
    if (straight !== null) return straight;
  }
  for (const [length, most] of ROUNDS) {
    if (most > maxTrials) return null;
    const text = new Search(matcher, ends, most, true, "").from("", length);
    if (text !== null) return text;
  }
  return null;
}

class Search {
  #trials: number;

  constructor(
    private readonly matcher: GrammarMatcher,
    private readonly texts: readonly string[],
    trials: number,
    private readonly back: boolean,
    private readonly known: string,
  ) {
    this.#trials = trials;
  }

  /** Depth first. ``text`` is what was accepted since the start, ``left`` how many characters may follow. */
  from(text: string, left: number): string | null {
    const { matcher } = this;
    if (matcher.complete()) return text;
    const rest = this.rests(text).find((rest) => completes(matcher, rest));
    if (rest !== undefined) return text + rest;
    const forced = matcher.forced();
    if (forced !== "") {
      if (forced.length > left || !matcher.acceptText(forced)) return null;
      const found = this.from(text + forced, left - forced.length);
      matcher.rollback(1);
      return found;
    }
    if (left <= 0 || (!this.back && runLength(text) > LONGEST_RUN)) return null;
    let met = false;
    for (const candidate of this.texts) {
      if (this.#trials-- <= 0) return null;
      if (!matcher.acceptText(candidate)) continue;
      met = true;
      const found = this.from(text + candidate, left - candidate.length);
      matcher.rollback(1);
      if (found !== null || !this.back) return found;
    }
    if (met) return null;
    // No ASCII character continues the text, but the vocabulary's own texts may.
    for (const candidate of this.fromMask()) {
      if (this.#trials-- <= 0 || !matcher.acceptText(candidate)) continue;
      const found = this.from(text + candidate, left - candidate.length);
      matcher.rollback(1);
      if (found !== null || !this.back) return found;
    }
    return null;
  }

  /** The ways in which a completion may continue ``text``, after the one that was ``known``. */
  private rests(text: string): readonly string[] {
    const { known } = this;
    if (known === "") return [];
    if (text === "") return [known, `"${known}`];
    const same = text.slice(-LONGEST_SAME);
    const at = known.indexOf(same);
    return at < 0 ? [known] : [known.slice(at + same.length), known];
  }

  private fromMask(): readonly string[] {
    const { tokens } = this.matcher.vocabulary;
    const mask = this.matcher.mask();
    const texts: string[] = [];
    const decoder = new TextDecoder("utf-8", { fatal: true });
    for (let id = 0; id < tokens.length && texts.length < 16; id++) {
      if (!hasBit(mask, id) || tokens[id]?.length === 0) continue;
      try {
        texts.push(decoder.decode(tokens[id]));
      } catch {
        // An incomplete character is not a text.
      }
    }
    return texts;
  }
}

/** Finds the fewest tokens that write a text. */
export class Shortener {
  readonly #ids = new Map<string, number>();
  readonly #cache = new Map<string, readonly number[] | null>();
  #longest = 1;

  constructor(vocabulary: Vocabulary) {
    vocabulary.tokens.forEach((bytes, id) => {
      if (bytes.length === 0 || bytes.length > LONGEST_TOKEN) return;
      this.#ids.set(String.fromCharCode(...bytes), id);
      this.#longest = Math.max(this.#longest, bytes.length);
    });
  }

  /** The fewest tokens that write ``text``, or null if the vocabulary lacks a byte of it. */
  tokens(text: string): readonly number[] | null {
    const known = this.#cache.get(text);
    if (known !== undefined) return known;
    const found = this.shortest(String.fromCharCode(...new TextEncoder().encode(text)));
    if (this.#cache.size > 1000) this.#cache.clear();
    this.#cache.set(text, found);
    return found;
  }

  private shortest(bytes: string): readonly number[] | null {
    const counts = new Float64Array(bytes.length + 1).fill(Infinity);
    const lengths = new Int32Array(bytes.length + 1);
    counts[bytes.length] = 0;
    for (let start = bytes.length - 1; start >= 0; start--) {
      for (let length = 1; length <= Math.min(this.#longest, bytes.length - start); length++) {
        const count = 1 + (counts[start + length] ?? Infinity);
        if (count < (counts[start] ?? 0) && this.#ids.has(bytes.slice(start, start + length))) {
          counts[start] = count;
          lengths[start] = length;
        }
      }
    }
    if (counts[0] === Infinity) return null;
    const ids: number[] = [];
    for (let at = 0; at < bytes.length; at += lengths[at] ?? 1)
      ids.push(this.#ids.get(bytes.slice(at, at + (lengths[at] ?? 1))) ?? -1);
    return ids;
  }
}

function runLength(text: string): number {
  let length = 0;
  while (length < text.length && text[text.length - 1 - length] === text.at(-1)) length++;
  return length;
}

function printable(): readonly string[] {
  const letters = Array.from({ length: 95 }, (_, offset) => String.fromCharCode(0x20 + offset)).reverse();
  return [...letters.filter((character) => !FIRST.includes(character)), "\n", "\t"];
}

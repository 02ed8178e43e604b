// Short completions: a text that makes the answer so far a whole one. A matcher's state flows in, a text flows out; the matcher is left as it was.

import { hasBit } from "./constraint.js";
import type { Vocabulary } from "./vocabulary.js";
import type { GrammarMatcher } from "./wasm.js";

// What closes something first, then what keeps things short: of a JSON text this order finds nearly the shortest.
const FIRST = '}]",:0123456789ntf-{[';
const CLOSERS = [...Array.from(FIRST), ...printable()];
// Lengths of texts tried one after another, with how many characters may be tried each time. JSON goes straight, others may have to go back.
const ROUNDS: readonly (readonly [number, number])[] = [
  [2, 250],
  [8, 500],
  [64, 1500],
  [512, 4000],
];
// The first round tells whether one goes straight; a character more often than this in a row is a loop.
const STRAIGHT_TRIALS = 10_000;
const LONGEST_RUN = 60;
const LONGEST_TEXT = 4096;
// By so many characters before it, the place is found where two completions are the same again.
const LONGEST_SAME = 8;
// Longer tokens are rarely what shortens a text.
const LONGEST_TOKEN = 24;

/** What completes an answer: tokens that end its last character, then a text. */
export interface Completion {
  readonly head: readonly number[];
  readonly text: string;
}

/**
 * A completion that is short but not surely the shortest; null where none is found. ``pending`` is how many bytes the answer's last character lacks,
 * ``endings`` are texts that may be the end of what can go on for ever. What completed the answer before its last token is ``known``: a new completion
 * soon leads to where that goes on.
 */
export function findCompletion(
  matcher: GrammarMatcher,
  pending: number,
  endings: readonly string[],
  maxTrials = Infinity,
  known = "",
): Completion | null {
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

/** How many bytes the last character lacks after ``bytes``, where it lacked ``pending`` before them. */
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
  // A text in which anything may come ends with a quote, once it has what it must have.
  const ends = ['"', ...endings, ...CLOSERS];
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
    // Nothing of ASCII goes on: the vocabulary's own texts may.
    for (const candidate of this.fromMask()) {
      if (this.#trials-- <= 0 || !matcher.acceptText(candidate)) continue;
      const found = this.from(text + candidate, left - candidate.length);
      matcher.rollback(1);
      if (found !== null || !this.back) return found;
    }
    return null;
  }

  /** How a completion may go on from ``text`` where another one was ``known``. */
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
        // A part of a character is no text.
      }
    }
    return texts;
  }
}

/** Texts as the fewest tokens. Token ids of the vocabulary flow out. */
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

  /** The fewest tokens that write ``text``, or null where the vocabulary lacks a byte of it. */
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

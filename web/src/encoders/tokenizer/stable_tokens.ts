// The tokens of a text's beginning that no continuation changes, for byte-pair encoding (BPE), whatever the text.
// compiler/runtime/text/stable_tokens.py explains why they are, and does the same.

import type { Tokenizer } from "../../text/tokenizer.js";
import type { AddedToken } from "./added_tokens.js";
import type { Part } from "./normalizers.js";

const CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const WHITE = "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
/** A word of these patterns ends where it does whatever follows the next few characters, white space apart. */
export const PATTERNS: readonly string[] = [
  "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
  `${CONTRACTIONS}|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|${WHITE}`,
  `${CONTRACTIONS}|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|${WHITE}`,
  `${CONTRACTIONS}|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|${WHITE}`,
  "\\p{N}",
];
/** More characters than a pattern looks ahead. */
const LOOK_AHEAD = 4;
const MOST_BYTES_PER_CHARACTER = 4;
/** A text is cut at one of this many places. Combining marks and white space may allow none. */
const PLACES = 64;
const NORMALIZED = 16;
const BYTE_TOKEN = /^<0x[0-9A-Fa-f]{2}>$/;
/** GPT-2's 256 characters for bytes. */
const BYTE_CHARACTER = /^[!-~\u00a1-\u00ac\u00ae-\u0143]$/;
const LINE_END = /[\r\n]/;

export interface BytePairJson {
  readonly added_tokens?: readonly AddedToken[];
  readonly normalizer?: Part | null;
  readonly pre_tokenizer?: Part | null;
  readonly model?: Part | null;
}

export class StableTokens {
  private constructor(
    private readonly tokenizer: Tokenizer,
    private readonly byteLevel: boolean,
    /** Lengths are in characters of the model, which are bytes for a byte-level one. */
    private readonly longest: number,
    /** How much of the end of a beginning an added token or a pattern may change. */
    private readonly uncertain: number,
    private readonly composes: boolean,
    /** Added tokens that take the white space in front of them. */
    private readonly stripping: readonly string[],
  ) {}

  /** Null for a tokenizer whose words may depend on what follows far behind, or that is not BPE. */
  static of(
    { added_tokens: added = [], normalizer, pre_tokenizer, model }: BytePairJson,
    tokenizer: Tokenizer,
  ): StableTokens | null {
    const normalizing = partsOf(normalizer, "normalizers");
    const splitting = partsOf(pre_tokenizer, "pretokenizers");
    const byteLevel = splitting.some(({ type }) => type === "ByteLevel");
    if (
      model?.type !== "BPE" ||
      model.dropout != null ||
      Boolean(model.continuing_subword_prefix) ||
      Boolean(model.end_of_word_suffix) ||
      !normalizing.every(keepsPlaces) ||
      !splitting.every(looksNear)
    )
      return null;
    const names = Object.keys(model.vocab as Record<string, number>);
    const numBytes = names.filter((name) => (byteLevel ? BYTE_CHARACTER : BYTE_TOKEN).test(name)).length;
    if (numBytes < 256 || (!byteLevel && model.byte_fallback !== true)) return null;
    if (!byteLevel && names.some((name) => /<0x[0-9A-Fa-f]{2}>./u.test(name) || /.<0x[0-9A-Fa-f]{2}>/u.test(name)))
      return null;
    const longestAdded = added.reduce((most, { content }) => Math.max(most, Array.from(content).length), 0);
    return new StableTokens(
      tokenizer,
      byteLevel,
      names.reduce((most, name) => Math.max(most, Array.from(name).length), 0),
      MOST_BYTES_PER_CHARACTER * (LOOK_AHEAD + longestAdded),
      normalizing.some(({ type }) => type === "NFC"),
      added.filter(({ lstrip }) => lstrip === true).map(({ content }) => content),
    );
  }

  /** A shorter beginning may have no token that is known to be stable. */
  get leastCharacters(): number {
    return this.uncertain + 3 * this.longest;
  }

  /**
   * A place at most ``size`` to cut a longer text, whose two sides are normalized and split by themselves; null if the
   * last characters before it have no such place.
   */
  cut(text: string, size: number): number | null {
    const start = text.slice(0, size).trimEnd().length;
    const from = this.#splitsSpace(text, start, size) ? size : start;
    for (let place = from; place > Math.max(0, from - PLACES); place--) if (this.#divides(text, place)) return place;
    return null;
  }

  /** The number of first tokens of a beginning that are the first tokens of any text that begins so. */
  count(ids: readonly number[]): number {
    const names = ids.map((id) => this.tokenizer.tokenName(id));
    const begin = 1 + ids.findLastIndex((id) => this.tokenizer.isAdded(id));
    const lengths = names.map((name) => (this.#isByte(name) ? 1 : Array.from(name).length));
    const starts = this.#wordStarts(ids.slice(begin), names.slice(begin), begin === 0);
    if (starts === null) return 0;
    let [end, toEnd] = [ids.length, 0];
    while (end > begin && toEnd < this.uncertain) toEnd += lengths[--end] ?? 0;
    if (toEnd < this.uncertain) return 0;
    let length = 0;
    for (let index = end - 1; index >= 0; index--) {
      const name = names[index] ?? "";
      // Bytes of an unknown character are never merged.
      if (index < begin || starts.has(toEnd + length) || this.#isByte(name)) return index + 1;
      if (length > 2 * this.longest) return this.#stays(names.slice(index, end).join(""), name) ? index + 1 : 0;
      length += lengths[index] ?? 0;
    }
    return 0;
  }

  /** The distances from the end at which words begin, for the tokens after the last added one; null if not known. */
  #wordStarts(ids: readonly number[], names: readonly string[], isFirst: boolean): ReadonlySet<number> | null {
    let section = names.map((name) => (this.#isByte(name) ? "\ufffd" : name)).join("");
    const length = Array.from(section).length;
    if (this.byteLevel) {
      const bytes = ids.flatMap((id) => [...(this.tokenizer.tokenBytes(id) ?? [])]);
      section = new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(bytes));
    }
    const starts = new Set<number>();
    let distance = 0;
    for (const word of this.tokenizer.words(section, isFirst).toReversed())
      starts.add((distance += Array.from(word).length));
    return distance === length ? starts : null;
  }

  /** Whether each beginning of ``word`` that ends at one of its last places has this ``first`` token. */
  #stays(word: string, first: string): boolean {
    const characters = Array.from(word);
    for (let shorter = 0; shorter < this.longest; shorter++) {
      const end = characters.slice(0, characters.length - shorter).join("");
      if (this.tokenizer.pieces(end)[0] !== first) return false;
    }
    return true;
  }

  #isByte(name: string): boolean {
    return !this.byteLevel && BYTE_TOKEN.test(name);
  }

  #divides(text: string, place: number): boolean {
    if (/^[\uDC00-\uDFFF]/.test(text.slice(place, place + 1))) return false;
    if (this.composes) {
      const [left, right] = [text.slice(Math.max(0, place - NORMALIZED), place), text.slice(place, place + NORMALIZED)];
      const composed = (part: string): string => part.normalize("NFC");
      if (/^\p{M}/u.test(right) || composed(left) + composed(right) !== composed(left + right)) return false;
    }
    return this.#splitsSpace(text, text.slice(0, place).trimEnd().length, place);
  }

  /** Whether white space from ``start`` may be cut at a place: what follows it does not belong to its words. */
  #splitsSpace(text: string, start: number, place: number): boolean {
    if (start === place) return true;
    const end = text.length - text.slice(place).trimStart().length;
    const lineEnds = !LINE_END.test(text[place - 1] ?? "") && LINE_END.test(text.slice(start, place));
    if (lineEnds && LINE_END.test(text.slice(place, end))) return false;
    return !this.stripping.some((name) => text.startsWith(name, end));
  }
}

function partsOf(part: Part | null | undefined, several: string): readonly Part[] {
  if (part == null) return [];
  return part.type === "Sequence"
    ? (part[several] as readonly Part[]).flatMap((each) => partsOf(each, several))
    : [part];
}

/** Whether a normalizer changes each character by itself, NFC apart. */
function keepsPlaces(part: Part): boolean {
  return part.type === "NFC" || part.type === "Prepend" || (part.type === "Replace" && isSingle(part.pattern));
}

function looksNear(part: Part): boolean {
  if (part.type !== "Split") return ["ByteLevel", "Digits", "Metaspace"].includes(part.type);
  const { Regex: regex } = part.pattern as { Regex?: string };
  return part.invert !== true && (isSingle(part.pattern) || (regex !== undefined && PATTERNS.includes(regex)));
}

function isSingle(pattern: unknown): boolean {
  const { String: text } = pattern as { String?: string };
  return text !== undefined && Array.from(text).length === 1;
}

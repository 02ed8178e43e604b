// The models of encoders' tokenizers: they divide a word into the pieces of the vocabulary.

import type { Part } from "./normalizers.js";

/** A piece of a word: its id, and its first character and the one after its last. */
export interface Piece {
  readonly id: number;
  readonly from: number;
  readonly to: number;
}

export interface PieceModel {
  /** ``chars``: the characters of a word, at least one. */
  pieces(chars: readonly string[]): readonly Piece[];
  idOf(token: string): number | undefined;
}

/**
 * The longest pieces from left to right; a word that they cannot cover, or a longer one than the limit, is unknown as a
 * whole (Schuster and Nakajima 2012).
 */
export class WordPiece implements PieceModel {
  readonly #ids: ReadonlyMap<string, number>;
  readonly #unknown: number;
  readonly #prefix: string;
  readonly #most: number;
  readonly #longest: number;

  constructor(part: Part) {
    this.#ids = new Map(Object.entries(part.vocab as Record<string, number>));
    this.#prefix = (part.continuing_subword_prefix as string | undefined) ?? "##";
    this.#most = Number(part.max_input_chars_per_word ?? 100);
    const unknown = this.#ids.get(String(part.unk_token));
    if (unknown === undefined) throw new Error(`the vocabulary has no token ${String(part.unk_token)}`);
    this.#unknown = unknown;
    this.#longest = [...this.#ids.keys()].reduce((longest, token) => Math.max(longest, token.length), 0);
  }

  idOf(token: string): number | undefined {
    return this.#ids.get(token);
  }

  pieces(chars: readonly string[]): readonly Piece[] {
    const unknown = [{ id: this.#unknown, from: 0, to: chars.length }];
    if (chars.length > this.#most) return unknown;
    const found: Piece[] = [];
    for (let from = 0; from < chars.length;) {
      let to = Math.min(chars.length, from + this.#longest);
      let id: number | undefined;
      for (; to > from; to--) {
        id = this.#ids.get((from > 0 ? this.#prefix : "") + chars.slice(from, to).join(""));
        if (id !== undefined) break;
      }
      if (id === undefined) return unknown;
      found.push({ id, from, to });
      from = to;
    }
    return found;
  }
}

/** How much less likely an unknown character is than the least likely piece. */
const UNKNOWN_PENALTY = 10;

/** The most likely pieces (Kudo 2018). Adjacent unknown characters are one piece. */
export class Unigram implements PieceModel {
  /** The number of characters of the longest piece. */
  readonly longest: number;
  readonly #ids = new Map<string, number>();
  readonly #scores: readonly number[];
  readonly #unknown: number | null;
  readonly #unknownScore: number;
  readonly #byteFallback: boolean;
  /** For each first character, the length of the longest piece in characters. */
  readonly #longest = new Map<string, number>();

  constructor(part: Part) {
    const vocab = part.vocab as readonly (readonly [string, number])[];
    this.#scores = vocab.map(([, score]) => score);
    vocab.forEach(([token], id) => {
      this.#ids.set(token, id);
      const chars = Array.from(token);
      const [first = ""] = chars;
      this.#longest.set(first, Math.max(this.#longest.get(first) ?? 0, chars.length));
    });
    this.longest = Math.max(...this.#longest.values());
    this.#unknown = part.unk_id === undefined ? null : (part.unk_id as number | null);
    this.#unknownScore = this.#scores.reduce((least, score) => Math.min(least, score), Infinity) - UNKNOWN_PENALTY;
    this.#byteFallback = part.byte_fallback === true;
  }

  idOf(token: string): number | undefined {
    return this.#ids.get(token);
  }

  pieces(chars: readonly string[]): readonly Piece[] {
    const size = chars.length;
    const best = new Float64Array(size + 1);
    const begins = new Int32Array(size + 1).fill(-1);
    const ids = new Int32Array(size + 1).fill(-1);
    const reach = (from: number, to: number, id: number, score: number): void => {
      const total = (best[from] ?? 0) + score;
      if (begins[to] !== -1 && total <= (best[to] ?? 0)) return;
      best[to] = total;
      begins[to] = from;
      ids[to] = id;
    };
    for (let from = 0; from < size; from++) {
      let piece = "";
      let hasSingle = false;
      const last = Math.min(size, from + (this.#longest.get(chars[from] ?? "") ?? 0));
      for (let to = from + 1; to <= last; to++) {
        piece += chars[to - 1] ?? "";
        const id = this.#ids.get(piece);
        if (id === undefined) continue;
        reach(from, to, id, this.#scores[id] ?? 0);
        hasSingle ||= to === from + 1;
      }
      if (!hasSingle) {
        if (this.#unknown === null) throw new Error("the tokenizer has no unknown token for a character of the text");
        reach(from, from + 1, this.#unknown, this.#unknownScore);
      }
    }
    const found: Piece[] = [];
    for (let to = size; to > 0;) {
      const from = begins[to] ?? 0;
      const id = ids[to] ?? -1;
      const next = found.at(-1);
      if (id === this.#unknown && next?.id === id) found[found.length - 1] = { ...next, from };
      else found.push({ id, from, to });
      to = from;
    }
    found.reverse();
    return found.flatMap((piece) => this.#named(piece, chars));
  }

  /** Several unknown characters may together be the text of a token; others may be bytes. */
  #named(piece: Piece, chars: readonly string[]): readonly Piece[] {
    if (piece.id !== this.#unknown) return [piece];
    const text = chars.slice(piece.from, piece.to).join("");
    const id = this.#ids.get(text);
    if (id !== undefined) return [{ ...piece, id }];
    if (!this.#byteFallback) return [piece];
    const bytes = [...new TextEncoder().encode(text)].map((byte) =>
      this.#ids.get(`<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`),
    );
    return bytes.every((byte) => byte !== undefined) ? bytes.map((byte) => ({ ...piece, id: byte })) : [piece];
  }
}

// The added tokens of tokenizer.json, which are found in a text before it is divided into words.

import type { Aligned } from "./aligned.js";
import { alignedText, slice } from "./aligned.js";
import type { Normalizer } from "./normalizers.js";

export interface AddedToken {
  readonly id: number;
  readonly content: string;
  readonly single_word?: boolean;
  readonly lstrip?: boolean;
  readonly rstrip?: boolean;
  readonly normalized?: boolean;
  readonly special?: boolean;
}

/** A part of a text: a token, or characters to be divided. */
export type Section = Aligned & { readonly token: AddedToken | null };

const WORD = /^[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]$/u;
const SPACE = /^\p{White_Space}$/u;

export class AddedTokens {
  readonly #plain: Finder;
  readonly #normalized: Finder;

  constructor(
    tokens: readonly AddedToken[],
    private readonly normalize: Normalizer,
  ) {
    const isNormalized = ({ normalized, special }: AddedToken): boolean => normalized ?? special !== true;
    this.#plain = new Finder(tokens.filter((token) => !isNormalized(token)).map((token) => [token.content, token]));
    this.#normalized = new Finder(
      tokens.filter(isNormalized).map((token) => [normalize(alignedText(token.content)).chars.join(""), token]),
    );
  }

  /** The sections of a text, normalized. ``skips``: tokens that are read as text. */
  sections(text: string, skips: (token: AddedToken) => boolean): readonly Section[] {
    return this.#plain
      .split(alignedText(text), skips)
      .flatMap((section) =>
        section.token === null ? this.#normalized.split(this.normalize(section), skips) : [section],
      );
  }
}

class Finder {
  readonly #tokens: ReadonlyMap<string, AddedToken>;
  readonly #pattern: RegExp | null;

  constructor(tokens: readonly (readonly [string, AddedToken])[]) {
    this.#tokens = new Map(tokens.filter(([content]) => content !== ""));
    const longestFirst = [...this.#tokens.keys()].sort((a, b) => b.length - a.length);
    const escaped = longestFirst.map((content) => content.replace(/[\\^$.*+?()[\]{}|/-]/g, "\\$&"));
    this.#pattern = escaped.length === 0 ? null : new RegExp(escaped.join("|"), "gu");
  }

  split(text: Aligned, skips: (token: AddedToken) => boolean): readonly Section[] {
    const { chars } = text;
    if (chars.length === 0) return [];
    const sections: Section[] = [];
    let done = 0;
    const joined = this.#pattern === null ? "" : chars.join("");
    // Indexes of the string, and of its characters.
    let [at, character] = [0, 0];
    for (const { 0: content, index } of this.#pattern === null ? [] : joined.matchAll(this.#pattern)) {
      while (at < index) at += chars[character++]?.length ?? 1;
      let from = character;
      let to = from + Array.from(content).length;
      const token = this.#tokens.get(content);
      if (token === undefined || skips(token)) continue;
      if (token.single_word === true && (WORD.test(chars[from - 1] ?? "") || WORD.test(chars[to] ?? ""))) continue;
      if (token.lstrip === true) while (from > done && SPACE.test(chars[from - 1] ?? "")) from--;
      if (token.rstrip === true) while (to < chars.length && SPACE.test(chars[to] ?? "")) to++;
      if (done < from) sections.push({ ...slice(text, done, from), token: null });
      sections.push({ ...slice(text, from, to), token });
      done = to;
    }
    if (done < chars.length) sections.push({ ...slice(text, done), token: null });
    return sections;
  }
}

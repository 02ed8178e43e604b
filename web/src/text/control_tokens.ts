// Control tokens: untrusted text, such as a message, must not be encoded as the control tokens that a chat template
// writes. `mark` inserts a sentinel wherever a message's text could be part of a match; in the rendered prompt, a match
// without a sentinel is the template's own.

import { RequestError } from "../errors.js";
import { strip } from "../shared/template/text.js";

/** A Unicode noncharacter, which is reserved for use inside a program. */
export const SENTINEL = "\ufdd0";

/** A control token's text, its offset after the sentinels are removed, and its offset. */
type Match = readonly [start: number, content: string, index: number];

/** Puts the text of pictures in a rendered prompt with sentinels. */
export type WritePictures = (marked: string, controls: ControlTokens) => string;

export class ControlTokens {
  readonly #added: RegExp;
  readonly #inside: RegExp;
  readonly #prefixes: ReadonlySet<string>;
  readonly #suffixes: ReadonlySet<string>;

  /** ``added``: the text of every added token; the longest match wins. ``controls``: the control tokens among them. */
  constructor(
    added: readonly string[],
    readonly controls: readonly string[],
  ) {
    const parts = (cut: (token: string, at: number) => string) =>
      new Set(controls.flatMap((token) => Array.from(token.slice(1), (_, at) => cut(token, at + 1))));
    this.#prefixes = parts((token, at) => token.slice(0, at));
    this.#suffixes = parts((token, at) => token.slice(at));
    this.#added = new RegExp(anyOf(added), "gu");
    this.#inside = new RegExp(`(?=${anyOf(controls)})[^]`, "gu");
  }

  /** The text with sentinels in each control token, and at an end that could become part of one. */
  mark(text: string): string {
    return this.#marked(text, false);
  }

  /** Also if the entire text is inside a control token, which a template could complete. */
  markInfix(text: string): string {
    return this.#marked(text, true);
  }

  #marked(text: string, infix: boolean): string {
    if (text.includes(SENTINEL)) throw sentinelRefused();
    // A template may trim the text, of Python's white space.
    const core = strip(text, undefined, "lr");
    const lead = text.indexOf(core);
    const trail = text.length - lead - core.length;
    const sizes = Array.from(
      core.slice(0, Math.max(0, ...this.controls.map(({ length }) => length))),
      (_, at) => at + 1,
    );
    let marked = text.replace(this.#inside, `$&${SENTINEL}`);
    const insert = (at: number): string => marked.slice(0, at) + SENTINEL + marked.slice(at);
    if (sizes.some((size) => this.#prefixes.has(core.slice(-size)))) marked = insert(marked.length - trail);
    const completed = infix && core !== "" && this.controls.some((token) => token.includes(core));
    return completed || sizes.some((size) => this.#suffixes.has(core.slice(0, size))) ? insert(lead) : marked;
  }

  /** The control tokens that a tokenizer matches between sentinels: the leftmost one, and the longest of several. */
  find(marked: string): readonly Match[] {
    let [removed, end] = [0, 0];
    const found: Match[] = [];
    for (const { 0: content, index } of marked.matchAll(this.#added)) {
      removed += marked.slice(end, index).split(SENTINEL).length - 1;
      end = index;
      if (this.controls.includes(content)) found.push([index - removed, content, index]);
    }
    return found;
  }
}

export function sentinelRefused(): RequestError {
  return new RequestError("The text contains U+FDD0, a noncharacter that is reserved for internal use; remove it", {
    code: "invalid_text",
  });
}

/**
 * Whether a chat template spells out an added token that marks a turn. Tags such as <think> do not: templates read them
 * in answers.
 */
export const spellsMarker = (template: string, token: string): boolean =>
  template.includes(token) && !/^(<\/?[A-Za-z_]+>|[\p{L}\p{N}_\s]*)$/u.test(token);

/** A text that represents a control token if the token's own text is plain text. */
export const privateSpelling = (index: number): string => `${SENTINEL}${index}\ufdd1`;

/** The longest of the words. */
function anyOf(words: readonly string[]): string {
  const sorted = words.filter((word) => word !== "").sort((left, right) => right.length - left.length);
  return sorted.length === 0
    ? "(?!)"
    : `(?:${sorted.map((word) => word.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&")).join("|")})`;
}

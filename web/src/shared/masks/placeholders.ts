// Placeholders: what far reads in place of private texts, such as [PERSON_1]. The number counts the different texts of
// a kind in the order in which a conversation has them, so a placeholder says nothing about its text, and every turn of
// the conversation has the same ones.
//
// A text that already looks like a placeholder is replaced by one itself, so what far reads contains only ours, and no
// text of a request can name another's. A model may write a placeholder in another case, with a space, or with the
// escapes of Markdown: all of these forms are read.

import { addressesIn } from "./addresses.js";

/** The kind of a text that looks like a placeholder. */
const LOOKALIKE = "TEXT";
/** No text begins with it that is masked. */
const NUMBER = "number \0";
const NAME = String.raw`([A-Za-z]{1,20})(?:\\?_| )([0-9]{1,6})`;

/** Every form of a placeholder, also of one that nobody made. It is stateful, so each search makes its own. */
export const placeholders = (): RegExp => new RegExp(String.raw`\[${NAME}\]|\\\[${NAME}\\\]`, "g");
/** The end of a text that may become a placeholder. */
export const BEGUN = /(?:\\|\\?\[[A-Za-z]{0,20}(?:\\|(?:\\?_| )[0-9]{0,6}\\?)?)$/;

/** A text and its placeholder. */
export interface Mask {
  readonly placeholder: string;
  readonly text: string;
  /** The text is a number of JSON: a string that has the placeholder alone is restored to it. */
  readonly number?: true;
}

/** The placeholder of a match of ``placeholders``, as it is written here. */
export function nameOf([, name, number, escapedName, escapedNumber]: readonly (string | undefined)[]): string {
  return `[${(name ?? escapedName ?? "").toUpperCase()}_${Number(number ?? escapedNumber)}]`;
}

/** A part of a text: its UTF-16 units from ``start`` to before ``end``, which become a placeholder of ``kind``. */
export interface Span {
  readonly start: number;
  readonly end: number;
  readonly kind: string;
}

/** The masks of a conversation. Those that it begins with keep their placeholders. */
export class MaskTable {
  /** By the text, or for a number by a text that begins with `NUMBER`. */
  readonly #placeholders: Map<string, string>;
  readonly #counts = new Map<string, number>();

  constructor(masks: readonly Mask[] = []) {
    this.#placeholders = new Map(
      masks.map(({ placeholder, text, number }) => [(number ? NUMBER : "") + text, placeholder]),
    );
    for (const { placeholder } of masks) {
      const [kind = "", number = ""] = placeholder.slice(1, -1).split("_");
      this.#counts.set(kind, Math.max(this.#counts.get(kind) ?? 0, Number(number)));
    }
  }

  get masks(): readonly Mask[] {
    return Array.from(this.#placeholders, ([text, placeholder]) =>
      text.startsWith(NUMBER) ? { placeholder, text: text.slice(NUMBER.length), number: true } : { placeholder, text },
    );
  }

  /**
   * Replaces the spans of a text, which may overlap, and what looks like a placeholder. A span in an address is replaced
   * with the address before it, because nothing is restored within one.
   */
  mask(text: string, spans: readonly Span[]): string {
    const lookalikes = Array.from(text.matchAll(placeholders()), ({ 0: found, index }) => {
      return { start: index, end: index + found.length, kind: LOOKALIKE };
    });
    let masked = "";
    let at = 0;
    const addresses = addressesIn(text);
    const wide = [...spans, ...lookalikes].map((span): Span => {
      const around = addresses.find(([, start, end]) => start <= span.start && span.start < end);
      return { ...span, start: around?.[0] ?? span.start };
    });
    for (const { start, end, kind } of joined(wide)) {
      masked += text.slice(at, start) + this.#placeholderOf(text.slice(start, end), kind);
      at = end;
    }
    return masked + text.slice(at);
  }

  /** The placeholder of a number of JSON, of the kind of the first span, or the number if there is none. */
  maskNumber(number: string, [span]: readonly Pick<Span, "kind">[]): string {
    return span === undefined ? number : this.#placeholderOf(NUMBER + number, span.kind);
  }

  #placeholderOf(text: string, kind: string): string {
    const known = this.#placeholders.get(text);
    if (known !== undefined) return known;
    const number = (this.#counts.get(kind) ?? 0) + 1;
    this.#counts.set(kind, number);
    const made = `[${kind}_${number}]`;
    this.#placeholders.set(text, made);
    return made;
  }
}

/** Spans in their order. Those that overlap become one, of the kind of the longest. */
export function joined(spans: readonly Span[]): readonly Span[] {
  const sorted = spans
    .filter(({ start, end }) => end > start)
    .sort((left, right) => left.start - right.start || right.end - left.end);
  const found: { start: number; end: number; kind: string; longest: number }[] = [];
  for (const { start, end, kind } of sorted) {
    const last = found.at(-1);
    if (last === undefined || start >= last.end) found.push({ start, end, kind, longest: end - start });
    else {
      last.end = Math.max(last.end, end);
      if (end - start > last.longest) [last.kind, last.longest] = [kind, end - start];
    }
  }
  return found.map(({ start, end, kind }) => ({ start, end, kind }));
}

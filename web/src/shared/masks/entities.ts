// The entities that a model finds: it reads a text in windows, because its context is short. Windows overlap, so that a
// name at the end of one is whole in the next.

import type { SpanClass } from "../../api/replies.js";
import type { Entity } from "./mask_request.js";

/** UTF-16 units of a window, and how many of them it has in common with the next one. */
const WINDOW = 600;
const OVERLAP = 120;
/** UTF-16 units of texts that are searched for one request. */
export const MOST_SEARCHED = 100_000;

export interface TextWindow {
  readonly start: number;
  readonly text: string;
}

/** ``of``: the index of its text. */
export interface SearchedWindow extends TextWindow {
  readonly of: number;
}

/** The windows of texts, without blank ones; null if the texts are more than are searched for one request. */
export function searchedWindows(texts: readonly string[]): readonly SearchedWindow[] | null {
  if (texts.reduce((sum, text) => sum + text.length, 0) > MOST_SEARCHED) return null;
  return texts
    .flatMap((text, of) => textWindows(text).map((window) => ({ of, ...window })))
    .filter(({ text }) => text.trim() !== "");
}

/** The windows of a text, which begin and end between words if it has any there. */
export function textWindows(text: string): readonly TextWindow[] {
  const windows: TextWindow[] = [];
  for (let start = 0; ;) {
    const end =
      start + WINDOW >= text.length ? text.length : between(text, start + WINDOW, start + WINDOW - OVERLAP / 2);
    windows.push({ start, text: text.slice(start, end) });
    if (end === text.length) return windows;
    start = between(text, end - OVERLAP, end - OVERLAP - OVERLAP / 2);
  }
}

/** The last index up to ``at`` behind white space, else one that splits no character; at least ``least``. */
function between(text: string, at: number, least: number): number {
  for (let index = at; index > least; index--) if (/\s/.test(text.charAt(index - 1))) return index;
  return /[\udc00-\udfff]/.test(text.charAt(at)) ? at - 1 : at;
}

/** The entities of a window of a text, in indices of that text. */
export function entitiesOf(
  { start: offset }: Pick<TextWindow, "start">,
  spans: readonly Pick<SpanClass, "label" | "start" | "end">[],
): readonly Entity[] {
  return spans.map(({ label, start, end }) => ({ label, start: offset + start, end: offset + end }));
}

// The entities that a model finds: it reads a text in windows, because its context is short, and labels tokens. Labels
// have the prefixes of spans or none: B- and S- begin an entity, all others go on with one of the same label.

import type { Classification } from "../../api/replies.js";
import type { Entity } from "./mask_request.js";

/** UTF-16 units of a window, and how many of them it has in common with the next one. */
const WINDOW = 600;
const OVERLAP = 120;

export interface TextWindow {
  readonly start: number;
  readonly text: string;
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
  { spans, tokens = [] }: Pick<Classification, "spans" | "tokens">,
): readonly Entity[] {
  if (spans !== undefined)
    return spans.map(({ label, start, end }) => ({ label, start: offset + start, end: offset + end }));
  const found: { label: string; start: number; end: number }[] = [];
  let isOpen = false;
  for (const { label, start, end } of tokens) {
    if (start === undefined || end === undefined) continue;
    const [, part = "", name = label] = /^([BIESLU])-(.+)$/.exec(label) ?? [];
    const last = found.at(-1);
    if (label === "O") isOpen = false;
    else if (isOpen && last?.label === name && !/[BSU]/.test(part)) last.end = offset + end;
    else {
      found.push({ label: name, start: offset + start, end: offset + end });
      isOpen = true;
    }
  }
  return found;
}

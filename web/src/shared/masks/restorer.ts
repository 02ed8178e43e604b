// Restores private texts in what far writes, piece by piece: a placeholder may be split over pieces. A placeholder that
// is not among the masks stays as it is, and so does one in an address; see `addresses`.

import type { Form, Place } from "./addresses.js";
import { START, placeAfter } from "./addresses.js";
import type { Mask } from "./placeholders.js";
import { BEGUN, nameOf, placeholders } from "./placeholders.js";

/** A placeholder of far's text and what stands there now: its first code point, their lengths in code points. */
type Edit = readonly [at: number, length: number, now: number];

/** What a restorer has not decided yet. */
export interface Pending {
  /** The beginning of what may become a placeholder. */
  readonly held: string;
  /** The place after the restored text. */
  readonly place: Place;
  /** The code points of far's text before what is held, and the placeholders in them. */
  readonly read: number;
  readonly edits: readonly Edit[];
}

export const NOTHING_PENDING: Pending = { held: "", place: START, read: 0, edits: [] };

/** A string of JSON that begins, and may have a placeholder alone; with its end as the last group. */
const STRING_BEGUN = new RegExp(String.raw`"(?:(?:${placeholders().source})("?))?$`);

/**
 * The restored text of a piece, in JSON escaped, and what is pending after it; null before the first piece. ``last``: no
 * other piece follows.
 */
export function restore(
  masks: readonly Mask[],
  form: Form,
  pending: Pending | null,
  piece: string,
  last: boolean,
): readonly [restored: string, pending: Pending] {
  const { held, place, read, edits: before } = pending ?? NOTHING_PENDING;
  const hasNumbers = form === "json" && masks.some(({ number }) => number);
  const text = held + piece;
  const whole = last ? text : text.slice(0, decidedUpTo(text, hasNumbers));
  const edits = [...before];
  let restored = "";
  let at = 0;
  let after = place;
  const add = (part: string): void => {
    after = placeAfter(form, after, part);
    restored += part;
  };
  for (const match of whole.matchAll(placeholders())) {
    const { 0: found, index } = match;
    add(whole.slice(at, index));
    const name = nameOf(match);
    const mask = after.inAddress ? undefined : masks.find(({ placeholder }) => placeholder === name);
    at = index + found.length;
    if (mask === undefined) add(found);
    else {
      const isString = whole[index - 1] === '"' && whole[at] === '"' && whole[index - 2] !== "\\";
      if (hasNumbers && mask.number && isString) {
        restored = restored.slice(0, -1) + mask.text;
        after = { ...START };
        at++;
      } else add(form === "json" ? JSON.stringify(mask.text).slice(1, -1) : mask.text);
      edits.push([read + lengthOf(whole.slice(0, index)), lengthOf(found), lengthOf(mask.text)]);
    }
  }
  add(whole.slice(at));
  return [restored, { held: text.slice(whole.length), place: after, read: read + lengthOf(whole), edits }];
}

/** The end of what no later piece changes. */
function decidedUpTo(text: string, hasNumbers: boolean): number {
  const begun = text.length - (BEGUN.exec(text)?.[0].length ?? 0);
  if (!hasNumbers) return begun;
  const before = text.slice(0, begun);
  // Its quotation mark goes if the placeholder is all of the string, which may also be escaped.
  const string = STRING_BEGUN.exec(before);
  if (string === null || string.at(-1) === '"') return begun;
  return string.index - (before[string.index - 1] === "\\" ? 1 : 0);
}

/** The complete text, restored. */
export function restored(masks: readonly Mask[], form: Form, text: string): string {
  return restore(masks, form, null, text, true)[0];
}

/** Names of offsets in an answer: of the first character of a citation, and of that after its last. */
const FIRSTS: readonly string[] = ["start_index", "start", "index"];
const ENDS: readonly string[] = ["end_index", "end"];
const ADDRESS = /ur[il]$|^(?:link|href)$/i;

/**
 * The citations of far's answer, restored: their texts, and their offsets in the answer, which count its code points.
 * ``pending`` is what the answer's last piece left. Nothing is restored in an address.
 */
export function restoredCitations(masks: readonly Mask[], pending: Pending | null, citations: unknown): unknown {
  const { edits } = pending ?? NOTHING_PENDING;
  const walk = (value: unknown, key: string): unknown => {
    if (typeof value === "string") return ADDRESS.test(key) ? value : restored(masks, "text", value);
    if (typeof value === "number") {
      const isEnd = ENDS.includes(key);
      return isEnd || FIRSTS.includes(key) ? moved(edits, value, isEnd) : value;
    }
    if (Array.isArray(value)) return value.map((item) => walk(item, key));
    if (typeof value !== "object" || value === null) return value;
    return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, walk(inner, name)]));
  };
  return walk(citations, "");
}

/** An offset within a placeholder is moved to an end of what stands there now. */
function moved(edits: readonly Edit[], offset: number, isEnd: boolean): number {
  let shift = 0;
  for (const [at, length, now] of edits) {
    if (offset <= at) break;
    if (offset < at + length) return at + shift + (isEnd ? now : 0);
    shift += now - length;
  }
  return offset + shift;
}

function lengthOf(text: string): number {
  return /[\ud800-\udbff]/.test(text) ? Array.from(text).length : text.length;
}

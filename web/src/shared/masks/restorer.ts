// Restores private texts in what far writes, piece by piece: a placeholder may be split over pieces. A placeholder that
// is not among the masks stays as it is, and so does one in an address; see `addresses`.

import type { Form, Place } from "./addresses.js";
import { START, placeAfter } from "./addresses.js";
import type { Mask } from "./placeholders.js";
import { BEGUN, nameOf, placeholders } from "./placeholders.js";

/** What a restorer has not decided yet. */
export interface Pending {
  /** The beginning of what may become a placeholder. */
  readonly held: string;
  /** The place after the restored text. */
  readonly place: Place;
}

export const NOTHING_PENDING: Pending = { held: "", place: START };

/**
 * The restored text of a piece, in JSON escaped, and what is pending after it. ``last``: no other piece follows.
 */
export function restore(
  masks: readonly Mask[],
  form: Form,
  { held, place }: Pending,
  piece: string,
  last: boolean,
): readonly [restored: string, pending: Pending] {
  const text = held + piece;
  const begun = last ? "" : (BEGUN.exec(text)?.[0] ?? "");
  const whole = text.slice(0, text.length - begun.length);
  let restored = "";
  let at = 0;
  let after = place;
  const add = (part: string): void => {
    after = placeAfter(form, after, part);
    restored += part;
  };
  for (const match of whole.matchAll(placeholders())) {
    add(whole.slice(at, match.index));
    const name = nameOf(match);
    const original = after.inAddress ? undefined : masks.find(({ placeholder }) => placeholder === name)?.text;
    add(original === undefined ? match[0] : form === "json" ? JSON.stringify(original).slice(1, -1) : original);
    at = match.index + match[0].length;
  }
  add(whole.slice(at));
  return [restored, { held: begun, place: after }];
}

/** The complete text, restored. */
export function restored(masks: readonly Mask[], form: Form, text: string): string {
  return restore(masks, form, NOTHING_PENDING, text, true)[0];
}

// Whether a string is Unicode text.

import { RequestError } from "../errors.js";

/** Throws RequestError for half of a surrogate pair. ``param`` is the parameter of the text. */
export function requireUnicode(text: string, param?: string): void {
  if (!/\p{Surrogate}/u.test(text)) return;
  throw new RequestError("the text contains half of a surrogate pair, which is not Unicode text; remove it", {
    ...(param !== undefined && { param }),
    code: "invalid_text",
  });
}

// Shows errors to the user. The engine's messages say what is wrong and, after the last semicolon, what to do; the page
// shows the two parts separately.

import { NearfarError } from "../src/index.js";
import { make } from "./elements.js";

/** The kind of an error, for a heading. */
export function errorKind(error: unknown): string {
  return error instanceof NearfarError ? error.name.replace("Error", "") : "Unexpected";
}

/** Show an error in an element: what is wrong, and what to do. */
export function explain(error: unknown, into: HTMLElement): void {
  const message = error instanceof Error ? error.message : String(error);
  const cut = message.lastIndexOf("; ");
  if (!(error instanceof NearfarError) || cut < 0) {
    into.replaceChildren(message);
    return;
  }
  // The semicolon remains for screen readers and for copied text.
  into.replaceChildren(
    make("span", "what", message.slice(0, cut)),
    make("span", "unseen", "; "),
    make("span", "fix", message.slice(cut + 2)),
  );
}

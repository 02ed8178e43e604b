// Errors for readers: the engine's messages say what is wrong and, after the last semicolon, what to do. Here the two are shown apart.

import { NearfarError } from "../src/index.js";
import { make } from "./elements.js";

/** The kind of an error, for a heading. */
export function errorKind(error: unknown): string {
  return error instanceof NearfarError ? error.name.replace("Error", "") : "Unexpected";
}

/** Put the message into an element, as what is wrong and what to do. */
export function explain(error: unknown, into: HTMLElement): void {
  const message = error instanceof Error ? error.message : String(error);
  const cut = message.lastIndexOf("; ");
  if (!(error instanceof NearfarError) || cut < 0) {
    into.replaceChildren(message);
    return;
  }
  // The semicolon stays for those who hear or copy the text.
  into.replaceChildren(
    make("span", "what", message.slice(0, cut)),
    make("span", "unseen", "; "),
    make("span", "fix", message.slice(cut + 2)),
  );
}

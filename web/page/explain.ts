// Shows errors to the user. The engine's messages say what is wrong and, after the last semicolon, what to do; the page
// shows the two parts separately.

import { NearfarError, StorageError } from "../src/index.js";
import { make } from "./elements.js";
import { formatBytes } from "../src/format_bytes.js";

/** The kind of an error, for a heading. */
export function errorKind(error: unknown): string {
  return error instanceof NearfarError ? error.name.replace("Error", "") : "Unexpected";
}

/** The message for the user, with a semicolon before what to do. */
function messageOf(error: unknown): string {
  const message = error instanceof Error ? error.message : String(error);
  if (!(error instanceof StorageError)) return message;
  // The engine's message is for developers, who call its cache.
  const { neededBytes, availableBytes } = error.details;
  if (typeof neededBytes !== "number" || typeof availableBytes !== "number") return message;
  return (
    `There is not enough storage: the model needs ${formatBytes(neededBytes)} more, and the browser has ` +
    `${formatBytes(availableBytes)} left for this page; delete a stored model, or free space on this device, and try again`
  );
}

/** Show an error in an element: what is wrong, and what to do. */
export function explain(error: unknown, into: HTMLElement): void {
  const message = messageOf(error);
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

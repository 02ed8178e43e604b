// What leaves this device under a policy that masks: shown word for word, and asked about before if the policy asks.

import type { MaskedText } from "../src/api/replies.js";
import { make } from "./elements.js";
import { asks } from "./question_dialog.js";

/** "messages[1].content" -> "Message 2". The other fields of a request have their own names. */
export function placeWords(path: string): string {
  const [, index, rest = ""] = /^messages\[(\d+)\]\.(.*)$/.exec(path) ?? [];
  if (index === undefined) return path.replace(/^answer\.(?:text|reasoning)$/, "The answer so far");
  const field = /^content(?:\[\d+\]\.text)?$/.test(rest) ? "" : ` (${rest})`;
  return `Message ${Number(index) + 1}${field}`;
}

export function leavingList(texts: readonly MaskedText[]): HTMLElement {
  return make(
    "ul",
    "leaving",
    ...texts.map(({ path, text }) => make("li", "", make("span", "place", placeWords(path)), make("q", "", text))),
  );
}

/** Whether the user agrees that the server receives these texts. */
export function confirmLeaving(host: string, texts: readonly MaskedText[]): Promise<boolean> {
  const advice =
    "The names in brackets stand for private texts, which stay on this device. If you refuse, this device answers.";
  return asks({
    id: "leaving",
    title: `Send this to ${host}?`,
    content: [leavingList(texts), make("p", "quiet", advice)],
    refuse: "Stay on this device",
    accept: "Send",
  });
}

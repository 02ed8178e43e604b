// Makes a conversation fit a model's context: the system prompt and the last question stay, and the oldest turns make way, each question with its answer.

import type { ChatMessage } from "./model.js";

export interface Fitted {
  readonly messages: readonly ChatMessage[];
  /** How many of the oldest questions made way. */
  readonly dropped: number;
}

/** ``messages`` without the oldest ``count`` turns; null if only the last question would be left out as well. */
export function withoutOldest(messages: readonly ChatMessage[], count: number): readonly ChatMessage[] | null {
  const system = messages.filter(({ role }) => role === "system");
  const rest = messages.filter(({ role }) => role !== "system");
  const starts = rest.flatMap(({ role }, index) => (role === "user" ? [index] : []));
  const start = starts[count];
  return start === undefined ? null : [...system, ...rest.slice(start)];
}

/**
 * Drops as few of the oldest turns as leave ``room`` tokens for the answer. If the last question alone leaves less, it is kept alone. ``countTokens`` counts a
 * chat's prompt.
 */
export async function fitMessages(
  messages: readonly ChatMessage[],
  context: number,
  room: number,
  countTokens: (messages: readonly ChatMessage[]) => Promise<number>,
): Promise<Fitted> {
  let fitted: Fitted = { messages, dropped: 0 };
  while ((await countTokens(fitted.messages)) + room > context) {
    const fewer = withoutOldest(messages, fitted.dropped + 1);
    if (fewer === null) break;
    fitted = { messages: fewer, dropped: fitted.dropped + 1 };
  }
  return fitted;
}

/** Tokens to keep free for an answer: as many as it may have, but at most a quarter of the context. */
export function answerRoom(context: number, maxTokens: number | null): number {
  return Math.min(maxTokens ?? Infinity, Math.floor(context / 4));
}

/** Messages as an engine reads them. */
export function plain(
  messages: readonly ChatMessage[],
): readonly { readonly role: ChatMessage["role"]; readonly content: string }[] {
  return messages.map(({ role, content }) => ({ role, content }));
}

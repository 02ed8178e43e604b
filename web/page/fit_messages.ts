// Makes a conversation fit a model's context by dropping the oldest turns, each question with its answer. The system
// prompt and the last question stay.

import type { Engine } from "../src/index.js";
import type { ChatMessage } from "./model.js";

export interface Fitted {
  readonly messages: readonly ChatMessage[];
  /** The number of the oldest turns that were dropped. */
  readonly dropped: number;
}

/** ``messages`` without the oldest ``count`` turns; null if this would drop the last question as well. */
export function withoutOldest(messages: readonly ChatMessage[], count: number): readonly ChatMessage[] | null {
  const system = messages.filter(({ role }) => role === "system");
  const rest = messages.filter(({ role }) => role !== "system");
  const starts = rest.flatMap(({ role }, index) => (role === "user" ? [index] : []));
  const start = starts[count];
  return start === undefined ? null : [...system, ...rest.slice(start)];
}

/**
 * Drops the fewest oldest turns that leave ``room`` tokens for the answer. The last question is never dropped, even if
 * it
 * leaves less. ``countTokens`` counts the tokens of a chat's prompt.
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

/** The tokens to reserve for an answer: its longest length, but at most a quarter of the context. */
export function answerRoom(context: number, maxTokens: number | null): number {
  return Math.min(maxTokens ?? Infinity, Math.floor(context / 4));
}

/** Whether the last message is the start of the answer, which then continues. */
export function continues(messages: readonly ChatMessage[]): boolean {
  return messages.at(-1)?.role === "assistant";
}

/** Counts the tokens of prompts as an engine reads them. */
export function promptTokens(
  engine: Pick<Engine, "countTokens">,
): (messages: readonly ChatMessage[]) => Promise<number> {
  return (messages) => engine.countTokens(plain(messages), { continueFinalMessage: continues(messages) });
}

/** The longest length of an answer, less what its start already has. */
export async function remainingTokens(
  messages: readonly ChatMessage[],
  maxTokens: number | null,
  countTokens: (messages: readonly ChatMessage[]) => Promise<number>,
): Promise<number | null> {
  if (maxTokens === null || !continues(messages)) return maxTokens;
  const begun = (await countTokens(messages)) - (await countTokens(messages.slice(0, -1)));
  return Math.max(1, maxTokens - begun);
}

/** The text of a message, without its pictures. */
export function textOf(content: ChatMessage["content"]): string {
  return typeof content === "string" ? content : content.map(({ text = "" }) => text).join("");
}

/** Messages as an engine reads them. */
export function plain(messages: readonly ChatMessage[]): readonly Pick<ChatMessage, "role" | "content">[] {
  return messages.map(({ role, content }) => ({ role, content }));
}

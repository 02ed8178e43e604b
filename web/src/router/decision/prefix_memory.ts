// The conversations that a side answered lately. Messages with their answer flow in; how much of new ones the side has likely computed before flows out.
// Pure, and in memory alone; tests/conformance/router_prefix.json holds Python's to the same shares.

import type { SituationMessage } from "./situation.js";

export type PrefixMessage = Pick<SituationMessage, "role" | "content">;

const CONVERSATIONS = 64;
/** Engines drop what nobody asked for in a while, and do not tell. */
const REMEMBERED_SECONDS = 300;

/** Of the last 64 conversations. ``now`` is in seconds, of any clock that does not go back. */
export class PrefixMemory {
  #answered: readonly { readonly at: number; readonly messages: readonly PrefixMessage[] }[] = [];

  remember(messages: readonly PrefixMessage[], answer: string, now: number): void {
    this.#answered = [
      ...this.#answered.slice(1 - CONVERSATIONS),
      { at: now, messages: [...messages, { role: "assistant", content: answer }] },
    ];
  }

  /**
   * Of the characters of ``messages``, those of the longest run of leading messages that one conversation of the last 300 s has too; from 0 to 1. Contents
   * count as code points, roles must be the same.
   */
  cachedShare(messages: readonly PrefixMessage[], now: number): number {
    const lately = this.#answered.filter(({ at }) => now - at <= REMEMBERED_SECONDS);
    const shared = Math.max(0, ...lately.map((conversation) => sharedMessages(messages, conversation.messages)));
    return characters(messages.slice(0, shared)) / Math.max(1, characters(messages));
  }
}

function sharedMessages(asked: readonly PrefixMessage[], answered: readonly PrefixMessage[]): number {
  const end = asked.findIndex(
    ({ role, content }, index) => role !== answered[index]?.role || content !== answered[index].content,
  );
  return end < 0 ? asked.length : end;
}

function characters(messages: readonly PrefixMessage[]): number {
  return messages.reduce((sum, { content }) => sum + Array.from(content).length, 0);
}

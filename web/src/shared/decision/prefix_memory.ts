// The last conversations that a side answered, to estimate how much of a new one the side has computed before. Pure,
// and only in memory; tests/conformance/router_prefix.json requires the same shares of Python's.

import type { SituationMessage } from "./situation.js";

export type PrefixMessage = Pick<SituationMessage, "role" | "content">;

const CONVERSATIONS = 64;
/** Engines evict what was not requested for a while, without reporting it. */
const REMEMBERED_SECONDS = 300;

/** The last 64 conversations. ``now`` is in seconds, of any clock that does not go back. */
export class PrefixMemory {
  #conversations: readonly { readonly at: number; readonly messages: readonly PrefixMessage[] }[] = [];

  remember(messages: readonly PrefixMessage[], answer: string, now: number): void {
    this.#conversations = [
      ...this.#conversations.slice(1 - CONVERSATIONS),
      { at: now, messages: [...messages, { role: "assistant", content: answer }] },
    ];
  }

  /**
   * The share of the characters of ``messages`` that are in the longest run of leading messages in common with one
   * conversation of the last 300 s; from 0 to 1. Contents count in code points, and roles must be the same.
   */
  cachedShare(messages: readonly PrefixMessage[], now: number): number {
    const lately = this.#conversations.filter(({ at }) => now - at <= REMEMBERED_SECONDS);
    const shared = Math.max(0, ...lately.map((conversation) => sharedMessages(messages, conversation.messages)));
    return characters(messages.slice(0, shared)) / Math.max(1, characters(messages));
  }
}

function sharedMessages(requested: readonly PrefixMessage[], earlier: readonly PrefixMessage[]): number {
  const end = requested.findIndex(
    ({ role, content }, index) => role !== earlier[index]?.role || content !== earlier[index].content,
  );
  return end < 0 ? requested.length : end;
}

function characters(messages: readonly PrefixMessage[]): number {
  return messages.reduce((sum, { content }) => sum + Array.from(content).length, 0);
}

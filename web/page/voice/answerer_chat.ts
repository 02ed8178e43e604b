// What answers on the pages as the chat of a conversation by voice.

import type { ChatCompletionChunk } from "../../src/api/types.js";
import type { VoiceChat } from "../../src/voice/index.js";
import { textOf } from "../fit_messages.js";
import type { Answerer, ChatMessage, Settings } from "../model.js";

const SETTINGS: Settings = { temperature: 0, maxTokens: 400, seed: null };

export interface Answers {
  readonly answerer: Answerer;
  /** Whether nothing of the conversation may be sent to a server. */
  readonly private: boolean;
}

/** ``current`` is called for each answer. */
export function chatOf(current: () => Answers): VoiceChat {
  return {
    chat: {
      completions: {
        create: ({ messages }, { signal }) => {
          const { answerer, private: isPrivate } = current();
          const asked = messages.map(({ role, content }) => ({
            role: role as ChatMessage["role"],
            content: textOf(content ?? ""),
            private: isPrivate,
          }));
          return Promise.resolve(chunksOf(answerer.answer(asked, SETTINGS, signal)));
        },
      },
    },
  };
}

async function* chunksOf(pieces: ReturnType<Answerer["answer"]>): AsyncGenerator<ChatCompletionChunk, void, undefined> {
  const head = { id: "voice", object: "chat.completion.chunk" as const, created: 0, model: "" };
  for await (const piece of pieces) {
    if (piece.type === "dropped") continue;
    const delta = piece.type === "text" ? { content: piece.text } : {};
    const route = piece.type === "route" ? { route: piece.route } : {};
    yield { ...head, ...route, choices: [{ index: 0, delta, finish_reason: null, logprobs: null }] };
  }
}

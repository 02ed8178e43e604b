// useChat: a conversation with an engine, as a store that React reads through useSyncExternalStore. Snapshots are
// immutable; each change creates a new one.

import { useEffect, useState, useSyncExternalStore } from "react";

import type { ChatSource, Reasoning } from "../api/chat_source.js";
import { isWithdrawal } from "../api/chat_source.js";
import type { ChatCompletionCreateParamsNonStreaming, ChatFinishReason, Route } from "../api/types.js";
import { RequestError } from "../errors.js";

export interface ChatMessage {
  readonly id: string;
  readonly role: "user" | "assistant";
  readonly content: string;
  /** The text of a thinking model before its answer. */
  readonly reasoning: string;
  /** Null for a user's message, while the answer is streamed, and after `stop` or an error. */
  readonly finishReason: ChatFinishReason | null;
  /** The side that answered, for a Hybrid. */
  readonly route: Route | null;
}

/** "submitted": before the first token. */
export type ChatStatus = "ready" | "submitted" | "streaming" | "error";

export interface ChatSnapshot {
  readonly messages: readonly ChatMessage[];
  readonly status: ChatStatus;
  /** Null unless the status is error; then usually a NearfarError. */
  readonly error: unknown;
}

/** OpenAI's parameters of a chat, and the engine's extensions; for a Hybrid also `pin`, `labels` and `language`. */
export type ChatParams = Omit<
  ChatCompletionCreateParamsNonStreaming,
  "messages" | "stream" | "n" | "signal" | "tools" | "tool_choice"
> &
  Readonly<Record<string, unknown>>;

export interface ChatOptions {
  /** Null while the engine loads. */
  readonly engine: ChatSource | null;
  /** The system message. */
  readonly system?: string | undefined;
  readonly params?: ChatParams | undefined;
}

export class Chat {
  /** The latest of the hook's options. */
  options: ChatOptions = { engine: null };
  #snapshot: ChatSnapshot;
  #running: AbortController | null = null;
  readonly #listeners = new Set<() => void>();

  constructor(messages: readonly ChatMessage[]) {
    this.#snapshot = { messages, status: "ready", error: null };
  }

  readonly subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  };

  readonly snapshot = (): ChatSnapshot => this.#snapshot;

  /**
   * Add a user's message and stream the answer to it. An answer that is still running is stopped first. Never rejects.
   */
  readonly send = async (text: string): Promise<void> => {
    this.stop();
    await this.answer([...this.#snapshot.messages, message("user", text)]);
  };

  /** Answer the last user's message again. Never rejects. */
  readonly regenerate = async (): Promise<void> => {
    this.stop();
    const { messages } = this.#snapshot;
    const last = messages.findLastIndex(({ role }) => role === "user");
    if (last >= 0) await this.answer(messages.slice(0, last + 1));
  };

  /** End the running answer; its text so far remains. */
  readonly stop = (): void => {
    this.#running?.abort();
    this.#running = null;
    const { messages, status } = this.#snapshot;
    if (status !== "submitted" && status !== "streaming") return;
    this.change({
      messages: messages.filter(
        ({ role, content, reasoning }) => role === "user" || content !== "" || reasoning !== "",
      ),
      status: "ready",
    });
  };

  /** Stop, and continue with other messages, or with none. */
  readonly setMessages = (messages: readonly ChatMessage[]): void => {
    this.stop();
    this.change({ messages, status: "ready", error: null });
  };

  private async answer(messages: readonly ChatMessage[]): Promise<void> {
    const running = new AbortController();
    const { signal } = running;
    this.#running = running;
    this.change({ messages, status: "submitted", error: null });
    try {
      const { engine, system, params } = this.options;
      if (engine === null)
        throw new RequestError("The engine is not loaded yet; wait until useEngine's status is ready");
      const prompt = [
        ...(system === undefined ? [] : [{ role: "system" as const, content: system }]),
        ...messages.map(({ role, content }) => ({ role, content })),
      ];
      let answer = message("assistant", "");
      for await (const chunk of await engine.chat.completions.create(
        { ...params, messages: prompt, stream: true },
        { signal },
      )) {
        // Ignore chunks that arrive after stop.
        if (signal.aborted) return;
        const [choice] = chunk.choices;
        if (choice === undefined) continue;
        if (isWithdrawal(chunk)) answer = { ...answer, content: "", reasoning: "" };
        const { content = "", reasoning_content: reasoning }: typeof choice.delta & Reasoning = choice.delta;
        answer = {
          ...answer,
          content: answer.content + content,
          reasoning: answer.reasoning + (reasoning ?? ""),
          finishReason: choice.finish_reason,
          route: chunk.route ?? answer.route,
        };
        const isBegun = answer.content !== "" || answer.reasoning !== "" || answer.finishReason !== null;
        if (isBegun) this.change({ messages: [...messages, answer], status: "streaming" });
      }
      if (!signal.aborted) this.change({ status: "ready" });
    } catch (error) {
      if (!signal.aborted) this.change({ status: "error", error });
    }
  }

  private change(part: Partial<ChatSnapshot>): void {
    this.#snapshot = { ...this.#snapshot, ...part };
    for (const listener of this.#listeners) listener();
  }
}

function message(role: ChatMessage["role"], content: string): ChatMessage {
  return { id: crypto.randomUUID(), role, content, reasoning: "", finishReason: null, route: null };
}

export interface UseChatOptions extends ChatOptions {
  /** The messages at the start of the conversation; read at the first render. */
  readonly initialMessages?: readonly ChatMessage[] | undefined;
}

export interface UseChat extends ChatSnapshot, Pick<Chat, "send" | "stop" | "regenerate" | "setMessages"> {}

/**
 * A conversation whose answers are streamed. `send`, `stop`, `regenerate` and `setMessages` are the same functions at
 * every render. Errors are reported as `error`, never as rejections. A running answer ends when the component unmounts.
 */
export function useChat({ initialMessages = [], ...options }: UseChatOptions): UseChat {
  const [chat] = useState(() => new Chat(initialMessages));
  useEffect(() => {
    chat.options = options;
  });
  useEffect(() => chat.stop, [chat]);
  const snapshot = useSyncExternalStore(chat.subscribe, chat.snapshot, chat.snapshot);
  const { send, stop, regenerate, setMessages } = chat;
  return { ...snapshot, send, stop, regenerate, setMessages };
}

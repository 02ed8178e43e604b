// useChat: a conversation with an engine.

import { useEffect, useState, useSyncExternalStore } from "react";

import type { ChatMessage, ChatOptions, ChatSnapshot } from "./chat.js";
import { Chat } from "./chat.js";

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

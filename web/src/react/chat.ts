// useChat: a conversation with an engine, as a store that React reads through useSyncExternalStore. Snapshots are
// immutable; each change creates a new one.

import { useEffect, useState, useSyncExternalStore } from "react";

import type { ChatSource, Reasoning } from "../api/chat_source.js";
import { isWithdrawal } from "../api/chat_source.js";
import type {
  ChatCompletionChunk,
  ChatCompletionCreateParamsNonStreaming,
  ChatFinishReason,
  Route,
} from "../api/types.js";
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

/** The part of `journalled` engines that a chat uses. */
interface Journalled {
  readonly journals: {
    find(id: string): Promise<{ readonly args: readonly unknown[] } | null>;
    resume(id: string, options: { readonly signal: AbortSignal }): Promise<{ readonly answer: AsyncIterable<unknown> }>;
    delete(id: string): Promise<void>;
  };
}

/** A message of a request that was kept. */
interface KeptMessage {
  readonly role: ChatMessage["role"] | "system";
  readonly content: string;
}

export interface ChatOptions {
  /** Null while the engine loads. */
  readonly engine: ChatSource | null;
  /**
   * With an engine of `journalled`: keeps the conversation's last answer under this id. A component that mounts with it,
   * on a later page too, shows that conversation again, and continues the answer if it had not ended.
   */
  readonly id?: string | undefined;
  /** The system message. */
  readonly system?: string | undefined;
  readonly params?: ChatParams | undefined;
}

export class Chat {
  /** The latest of the hook's options. */
  options: ChatOptions = { engine: null };
  #snapshot: ChatSnapshot;
  #running: AbortController | null = null;
  /** Resolves when the last answer has ended, however it did. */
  #ended: Promise<void> = Promise.resolve();
  /** Whether the conversation is not that of an earlier page any more. */
  #isOwn = false;
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
    if (this.#running !== null) this.forget();
    this.end();
  };

  /** End the running answer. With an id, `resume` continues it, on this page or on a later one. */
  readonly leave = (): void => {
    if (this.#running !== null && this.options.id !== undefined) this.#isOwn = false;
    this.end();
  };

  private end(): void {
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
  }

  /** Stop, and continue with other messages, or with none. */
  readonly setMessages = (messages: readonly ChatMessage[]): void => {
    this.stop();
    this.forget();
    this.#isOwn = true;
    this.change({ messages, status: "ready", error: null });
  };

  /** Show the conversation that an earlier page has kept, if there is one, and continue its answer. Never rejects. */
  readonly resume = async (): Promise<void> => {
    const { engine, id } = this.options;
    if (engine === null || id === undefined || this.#isOwn) return;
    await this.run(async (signal) => {
      const { journals } = journalledEngine(engine);
      const kept = await journals.find(id);
      signal.throwIfAborted();
      if (kept === null) return null;
      const [params] = kept.args as readonly [{ readonly messages: readonly KeptMessage[] }];
      const messages = params.messages.flatMap(({ role, content }) =>
        role === "system" ? [] : [message(role, content)],
      );
      this.change({ messages, status: "submitted", error: null });
      return (await journals.resume(id, { signal })).answer as AsyncIterable<ChatCompletionChunk>;
    });
  };

  private async answer(messages: readonly ChatMessage[]): Promise<void> {
    this.#isOwn = true;
    this.change({ messages, status: "submitted", error: null });
    await this.run(async (signal) => {
      const { engine, system, params, id } = this.options;
      if (engine === null)
        throw new RequestError("The engine is not loaded yet; wait until useEngine's status is ready");
      const prompt = [
        ...(system === undefined ? [] : [{ role: "system" as const, content: system }]),
        ...messages.map(({ role, content }) => ({ role, content })),
      ];
      if (id !== undefined) await journalledEngine(engine).journals.delete(id);
      const kept = id === undefined ? {} : { id };
      return engine.chat.completions.create({ ...params, messages: prompt, stream: true }, { signal, ...kept });
    });
  }

  /** Show what ``open`` streams, after the messages that there are then. Null: there is nothing to show. */
  private async run(
    open: (signal: AbortSignal) => PromiseLike<AsyncIterable<ChatCompletionChunk> | null>,
  ): Promise<void> {
    const running = new AbortController();
    const { signal } = running;
    const before = this.#ended;
    let end: () => void = () => undefined;
    this.#ended = new Promise((resolve) => (end = resolve));
    this.#running = running;
    try {
      // Only one answer is written under an id.
      if (this.options.id !== undefined) await before;
      signal.throwIfAborted();
      const chunks = await open(signal);
      if (chunks !== null) await this.show(chunks, signal);
      if (signal.aborted) return;
      this.#isOwn = true;
      this.change({ status: "ready" });
    } catch (error) {
      if (!signal.aborted) this.change({ status: "error", error });
    } finally {
      if (this.#running === running) this.#running = null;
      end();
    }
  }

  private async show(chunks: AsyncIterable<ChatCompletionChunk>, signal: AbortSignal): Promise<void> {
    const { messages } = this.#snapshot;
    let answer = message("assistant", "");
    for await (const chunk of chunks) {
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
  }

  /** No later page continues the answer. */
  private forget(): void {
    const { engine, id } = this.options;
    if (engine === null || id === undefined || !isJournalled(engine)) return;
    const before = this.#ended;
    // What cannot be deleted now is replaced by the next answer.
    this.#ended = before.then(() => engine.journals.delete(id)).catch(() => undefined);
  }

  private change(part: Partial<ChatSnapshot>): void {
    this.#snapshot = { ...this.#snapshot, ...part };
    for (const listener of this.#listeners) listener();
  }
}

function isJournalled(engine: ChatSource): engine is ChatSource & Journalled {
  return "journals" in engine;
}

/** Throws RequestError. */
function journalledEngine(engine: ChatSource): ChatSource & Journalled {
  if (isJournalled(engine)) return engine;
  throw new RequestError("useChat with an id needs an engine of journalled (@nearfar/web/journal)", { param: "id" });
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
 * every render. Errors are reported as `error`, never as rejections. A running answer ends when the component unmounts;
 * with an `id`, a component that mounts later continues it.
 */
export function useChat({ initialMessages = [], ...options }: UseChatOptions): UseChat {
  const [chat] = useState(() => new Chat(initialMessages));
  useEffect(() => {
    chat.options = options;
  });
  const { engine, id } = options;
  useEffect(() => chat.leave, [chat]);
  useEffect(() => {
    void chat.resume();
  }, [chat, engine, id]);
  const snapshot = useSyncExternalStore(chat.subscribe, chat.snapshot, chat.snapshot);
  const { send, stop, regenerate, setMessages } = chat;
  return { ...snapshot, send, stop, regenerate, setMessages };
}

// A session: a conversation that retains its keys and values on the device. Each message computes only its own tokens,
// and a clone shares the pages of the messages so far.

import type { SessionApi } from "./api/engine_api.js";
import type { Check, Checks } from "./api/params.js";
import type { RetainedSequence } from "./engine/sequence.js";
import { forkOf, newConversation } from "./engine/sequence.js";
import type { TokenEngine } from "./engine/token_engine.js";
import { RequestError, StorageError } from "./errors.js";
import type { ChatCompletionContentPart } from "./api/types.js";
import type { ChatMessage, GenerateOptions, GenerationEvent, Prompt, SessionGenerateOptions } from "./generation.js";
import { generationEvents, tokenRequest } from "./generation.js";
import type { SessionStorage } from "./store/session_store.js";
import type { Tokenizer } from "./text/tokenizer.js";

export interface SessionOptions {
  /** The messages before the first one, such as a system message. */
  readonly messages?: readonly ChatMessage[] | undefined;
}

/** The options of createSession. */
export const SESSION_OPTIONS: Checks = { messages: "any[]" } satisfies Record<keyof SessionOptions, Check>;

/**
 * The interface of a session to its engine. Saved keys and values are valid only for the same ``bundle`` id and
 * ``activation`` dtype.
 */
export interface SessionHost {
  readonly tokens: TokenEngine;
  readonly tokenizer: Tokenizer;
  readonly bundle: string;
  readonly activation: () => string;
  /** Where sessions are saved. Throws StorageError if they cannot be saved. */
  readonly storage: () => Promise<SessionStorage>;
  /** The prompt of a chat. */
  readonly prompt: (messages: readonly ChatMessage[], options: GenerateOptions) => Promise<Prompt>;
  /** The messages as JSON can hold them. */
  readonly stored: (messages: readonly ChatMessage[]) => Promise<readonly ChatMessage[]>;
}

/** What the user says: a text, or a list of parts with pictures. */
export type SessionContent = string | readonly ChatCompletionContentPart[];

/** Shared by sessions on the page and sessions in a worker: the messages so far, and one answer at a time. */
export abstract class Conversation {
  #messages: readonly ChatMessage[];
  #answering = false;
  #closed = false;

  constructor(messages: readonly ChatMessage[] = []) {
    this.#messages = [...messages];
  }

  /** All messages so far. */
  get messages(): readonly ChatMessage[] {
    return this.#messages;
  }

  /** Whether an answer is being generated. Until it ends, the session accepts no other message and cannot be saved. */
  get isAnswering(): boolean {
    return this.#answering;
  }

  /**
   * Send ``content`` as the user's message and yield the answer. Only one answer can be generated at a time. If the
   * caller leaves the loop or aborts the signal, the session forgets the answer and its question.
   * Throws RequestError, DeviceError, or the signal's reason.
   */
  async *generate(
    content: SessionContent,
    options: SessionGenerateOptions = {},
  ): AsyncGenerator<GenerationEvent, void, undefined> {
    this.requireIdle();
    const messages: readonly ChatMessage[] = [...this.#messages, { role: "user", content }];
    this.#answering = true;
    let answer = "";
    try {
      for await (const event of await this.answer(messages, content, options)) {
        answer += event.text;
        // A caller that leaves the loop at "done" has received the complete answer.
        if (event.type === "done") this.#messages = [...messages, { role: "assistant", content: answer }];
        yield event;
      }
    } finally {
      this.#answering = false;
    }
  }

  /** The answer to ``content``, which is the last of ``messages``. */
  protected abstract answer(
    messages: readonly ChatMessage[],
    content: SessionContent,
    options: SessionGenerateOptions,
  ): AsyncIterable<GenerationEvent> | Promise<AsyncIterable<GenerationEvent>>;

  protected replaceMessages(messages: readonly ChatMessage[]): void {
    this.#messages = [...messages];
  }

  protected markClosed(): void {
    this.#closed = true;
  }

  protected requireIdle(): void {
    if (this.#closed) throw new RequestError("The session is closed; create another");
    if (this.#answering)
      throw new RequestError("The session is generating an answer; wait for its end, abort it, or clone it before");
  }
}

export class Session extends Conversation {
  #retained: RetainedSequence;

  constructor(
    private readonly host: SessionHost,
    { messages }: SessionOptions = {},
    retained: RetainedSequence = newConversation(),
  ) {
    super(messages);
    this.#retained = retained;
  }

  /**
   * A second conversation with the same history. Both share what is on the device; the one that continues first gets
   * its own copy of the last page.
   */
  clone(): SessionApi {
    this.requireIdle();
    return new Session(this.host, { messages: this.messages }, forkOf(this.#retained));
  }

  /**
   * Write the conversation, including its keys and values, to this origin's file system, or to the app's files. Throws
   * StorageError, DeviceError.
   */
  async save(name: string): Promise<void> {
    this.requireIdle();
    const { tokens, bundle, activation } = this.host;
    const messages = await this.host.stored(this.messages);
    const { keysAndValues, ...retained } = await tokens.readRetained(this.#retained);
    const record = { bundle, activation: activation(), messages, ...retained };
    await (await this.host.storage()).write(name, record, keysAndValues);
  }

  /**
   * Replace this conversation with a saved one. Keys and values of another bundle or dtype cannot be used; the next
   * answer then computes all messages again. Throws StorageError if no session has this name, or if it has other page
   * groups than the bundle.
   */
  async restore(name: string): Promise<void> {
    this.requireIdle();
    const { tokens, bundle, activation } = this.host;
    const { record, keysAndValues } = await (await this.host.storage()).read(name);
    this.requireIdle();
    const isUsable = record.bundle === bundle && record.activation === activation();
    // A version without page groups saved all pages.
    const { tokenIds, deadPages = [0], adapter = "" } = record;
    if (isUsable && tokenIds.length > 0) requireLayout(name, deadPages, tokens.runner.limits.groups.length);
    this.replaceMessages(record.messages);
    this.#retained = isUsable
      ? tokens.writeRetained({ tokenIds, deadPages, adapter, keysAndValues })
      : newConversation();
  }

  /** The session accepts no more messages. Its keys and values give way to others. */
  close(): void {
    this.markClosed();
  }

  protected async answer(
    messages: readonly ChatMessage[],
    _content: SessionContent,
    options: GenerateOptions,
  ): Promise<AsyncGenerator<GenerationEvent, void, undefined>> {
    const { tokens, tokenizer, prompt } = this.host;
    const request = tokenRequest(await prompt(messages, options), options);
    return generationEvents(tokens.generateTokens(request, this.#retained), tokenizer);
  }
}

/** Throws StorageError if a saved session has other page groups than the bundle. */
function requireLayout(session: string, deadPages: readonly number[], groups: number): void {
  if (deadPages.length === groups) return;
  throw new StorageError(
    `The saved session '${session}' has ${deadPages.length} page groups, this model has ${groups}; save it again`,
    { session, found: deadPages.length, expected: groups },
  );
}

// A session: a conversation that retains its keys and values on the device. Each message computes only its own tokens,
// and a clone shares the pages of the messages so far.

import type { SessionApi } from "./api/engine_api.js";
import { Conversation } from "./conversation.js";
import { StorageError } from "./errors.js";
import type { RetainedSequence } from "./engine/retained_sequence.js";
import type { TokenEngine } from "./engine/token_engine.js";
import type { GenerateOptions, GenerationEvent } from "./generation.js";
import { generationEvents, tokenRequest } from "./generation.js";
import type { SessionStorage } from "./store/session_store.js";
import type { Message } from "./text/chat_template.js";
import type { Tokenizer } from "./text/tokenizer.js";

export interface SessionOptions {
  /** The messages before the first one, such as a system message. */
  readonly messages?: readonly Message[] | undefined;
}

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
}

export class Session extends Conversation {
  #retained: RetainedSequence;

  constructor(
    private readonly host: SessionHost,
    { messages }: SessionOptions = {},
    retained: RetainedSequence = host.tokens.retainedSequence(),
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
    return new Session(this.host, { messages: this.messages }, this.host.tokens.retainedSequence(this.#retained));
  }

  /**
   * Write the conversation, including its keys and values, to this origin's file system, or to the app's files. Throws
   * StorageError, DeviceError.
   */
  async save(name: string): Promise<void> {
    this.requireIdle();
    const { tokens, bundle, activation } = this.host;
    const { tokens: tokenIds, tables } = this.#retained;
    const deadPages = tables.map((table) => table.dead);
    const { adapter } = this.#retained;
    const record = { bundle, activation: activation(), messages: this.messages, tokenIds, deadPages, adapter };
    await (await this.host.storage()).write(name, record, await tokens.readRetained(this.#retained));
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
    const { tokenIds, deadPages = [0], adapter } = record;
    if (isUsable && tokenIds.length > 0) requireLayout(name, deadPages, tokens.runner.limits.groups.length);
    this.replaceMessages(record.messages);
    tokens.forget(this.#retained);
    this.#retained = tokens.retainedSequence();
    if (isUsable) tokens.writeRetained(this.#retained, tokenIds, deadPages, keysAndValues, adapter);
  }

  /** Release the pages. The session accepts no more messages. */
  close(): void {
    this.markClosed();
    this.host.tokens.forget(this.#retained);
  }

  protected answer(
    messages: readonly Message[],
    _content: string,
    options: GenerateOptions,
  ): AsyncGenerator<GenerationEvent, void, undefined> {
    const { tokens, tokenizer } = this.host;
    const request = tokenRequest(tokenizer.encodeChat(messages), options);
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

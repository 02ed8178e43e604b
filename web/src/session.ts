// A session: a conversation that keeps its keys and values on the device. Each message prefills itself only; a clone shares the pages of what was said.

import type { SessionApi } from "./api/engine_api.js";
import type { KeptSequence } from "./engine/kept_sequence.js";
import type { Completion, GeneratedToken, TokenRequest } from "./engine/request.js";
import type { TokenEngine } from "./engine/token_engine.js";
import { RequestError } from "./errors.js";
import type { GenerateOptions, GenerationEvent } from "./generation.js";
import { generationEvents, tokenRequest } from "./generation.js";
import type { SessionStorage } from "./store/session_store.js";
import type { Message } from "./text/chat_template.js";
import type { Tokenizer } from "./text/tokenizer.js";

export interface SessionOptions {
  /** What was said before, such as a system message. */
  readonly messages?: readonly Message[] | undefined;
}

/** What a session needs of its engine. ``bundle`` names the bundle, ``activation`` its dtype at the moment: what keys and values are good for. */
export interface SessionHost {
  readonly tokens: TokenEngine;
  readonly tokenizer: Tokenizer;
  readonly bundle: string;
  readonly activation: () => string;
  /** Where sessions are saved. Throws StorageError where that cannot be. */
  readonly storage: () => Promise<SessionStorage>;
}

export class Session {
  #messages: Message[];
  #kept: KeptSequence;
  #answering = false;
  #closed = false;

  constructor(
    private readonly host: SessionHost,
    { messages = [] }: SessionOptions = {},
    kept: KeptSequence = host.tokens.keep(),
  ) {
    this.#messages = [...messages];
    this.#kept = kept;
  }

  /** All that was said so far. */
  get messages(): readonly Message[] {
    return this.#messages;
  }

  /** Whether an answer is on its way: until its end the session takes no other and cannot be saved. */
  get isAnswering(): boolean {
    return this.#answering;
  }

  /**
   * Say ``content`` and yield the answer; one answer at a time. An answer that is left or aborted is forgotten together with its question. Throws
   * RequestError, DeviceError, or the signal's reason.
   */
  async *generate(
    content: string,
    options: Omit<GenerateOptions, "raw"> = {},
  ): AsyncGenerator<GenerationEvent, void, undefined> {
    this.requireIdle();
    const asked: readonly Message[] = [...this.#messages, { role: "user", content }];
    const request = tokenRequest(this.host.tokenizer.encodeChat(asked), options);
    this.#answering = true;
    let answer = "";
    try {
      for await (const event of generationEvents(this.tokens(request), this.host.tokenizer)) {
        answer += event.text;
        // Whoever leaves at "done" has had the whole answer.
        if (event.type === "done") this.#messages = [...asked, { role: "assistant", content: answer }];
        yield event;
      }
    } finally {
      this.#answering = false;
    }
  }

  /** A second conversation with the same past. They share what is on the device; whichever goes on first gets its own copy of the last page. */
  clone(): SessionApi {
    this.requireIdle();
    return new Session(this.host, { messages: this.#messages }, this.host.tokens.keep(this.#kept));
  }

  /** Write the conversation, its keys and values included, to this origin's file system, or in an app to its files. Throws StorageError, DeviceError. */
  async save(name: string): Promise<void> {
    this.requireIdle();
    const { tokens, bundle, activation } = this.host;
    const record = { bundle, activation: activation(), messages: this.#messages, tokenIds: this.#kept.tokens };
    await (await this.host.storage()).write(name, record, await tokens.readKept(this.#kept));
  }

  /**
   * Take up a saved conversation in place of this one. Keys and values of another bundle or dtype are of no use: then what was said is computed
   * again with the next answer. Throws StorageError where there is none of this name.
   */
  async restore(name: string): Promise<void> {
    this.requireIdle();
    const { tokens, bundle, activation } = this.host;
    const { record, keysAndValues } = await (await this.host.storage()).read(name);
    this.requireIdle();
    this.#messages = [...record.messages];
    tokens.forget(this.#kept);
    this.#kept = tokens.keep();
    if (record.bundle === bundle && record.activation === activation())
      tokens.writeKept(this.#kept, record.tokenIds, keysAndValues);
  }

  /** Let the pages go. The session takes no more messages. */
  close(): void {
    this.#closed = true;
    this.host.tokens.forget(this.#kept);
  }

  private tokens(request: TokenRequest): AsyncGenerator<GeneratedToken, Completion, undefined> {
    return this.host.tokens.generateTokens(request, this.#kept);
  }

  private requireIdle(): void {
    if (this.#closed) throw new RequestError("The session is closed; create another");
    if (this.#answering)
      throw new RequestError("The session is at an answer; wait for its end, abort it, or clone the session before");
  }
}

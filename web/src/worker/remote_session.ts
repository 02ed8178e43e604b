// A session of an engine in a worker, with the methods of a session on the page. Both sides hold the messages, so that
// `messages` is available without waiting.

import type { SessionApi } from "../api/engine_api.js";
import type { GenerateOptions, GenerationEvent } from "../generation.js";
import type { SessionOptions } from "../session.js";
import { Conversation } from "../session.js";
import type { Message } from "../text/chat_template.js";
import type { Remote } from "./remote.js";

export class RemoteSession extends Conversation implements SessionApi {
  readonly #id = crypto.randomUUID();
  readonly #remote: Remote;
  /** Rejected if the worker cannot create the session; every later call then throws the same error. */
  readonly #created: Promise<unknown>;

  /** ``original``: the session that this one is a clone of. */
  constructor(remote: Remote, options: SessionOptions = {}, original?: RemoteSession) {
    super(options.messages);
    this.#remote = remote;
    this.#created = remote.call(
      ["sessions", original === undefined ? "create" : "clone"],
      original === undefined ? [this.#id, options] : [original.#id, this.#id],
    );
    this.#created.catch(() => undefined);
  }

  clone(): SessionApi {
    this.requireIdle();
    return new RemoteSession(this.#remote, { messages: this.messages }, this);
  }

  async save(name: string): Promise<void> {
    this.requireIdle();
    await this.#call("save", name);
  }

  async restore(name: string): Promise<void> {
    this.requireIdle();
    this.replaceMessages((await this.#call("restore", name)) as readonly Message[]);
  }

  close(): void {
    this.markClosed();
    this.#call("close").catch(() => undefined);
  }

  protected async answer(
    _messages: readonly Message[],
    content: string,
    options: GenerateOptions,
  ): Promise<AsyncIterable<GenerationEvent>> {
    return (await this.#call("generate", content, options)) as AsyncIterable<GenerationEvent>;
  }

  async #call(method: string, ...args: readonly unknown[]): Promise<unknown> {
    await this.#created;
    return this.#remote.call(["sessions", method], [this.#id, ...args]);
  }
}

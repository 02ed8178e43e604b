// A session of an engine in a worker, with the methods of one on the page. The conversation is kept on both sides, so that `messages` needs no waiting.

import type { SessionApi } from "../api/engine_api.js";
import { RequestError } from "../errors.js";
import type { GenerateOptions, GenerationEvent } from "../generation.js";
import type { SessionOptions } from "../session.js";
import type { Message } from "../text/chat_template.js";
import type { Remote } from "./remote.js";

export class RemoteSession implements SessionApi {
  readonly #id = crypto.randomUUID();
  readonly #remote: Remote;
  /** Rejected if the worker cannot create the session; every later call then throws the same. */
  readonly #created: Promise<unknown>;
  #messages: readonly Message[];
  #answering = false;
  #closed = false;

  /** ``original``: the session that this one is a clone of. */
  constructor(remote: Remote, options: SessionOptions = {}, original?: RemoteSession) {
    this.#remote = remote;
    this.#messages = [...(options.messages ?? [])];
    this.#created = remote.call(
      ["sessions", original === undefined ? "create" : "clone"],
      original === undefined ? [this.#id, options] : [original.#id, this.#id],
    );
    this.#created.catch(() => undefined);
  }

  get messages(): readonly Message[] {
    return this.#messages;
  }

  get isAnswering(): boolean {
    return this.#answering;
  }

  async *generate(
    content: string,
    options: Omit<GenerateOptions, "raw"> = {},
  ): AsyncGenerator<GenerationEvent, void, undefined> {
    this.requireIdle();
    const asked: readonly Message[] = [...this.#messages, { role: "user", content }];
    this.#answering = true;
    let answer = "";
    try {
      for await (const event of (await this.call("generate", content, options)) as AsyncIterable<GenerationEvent>) {
        answer += event.text;
        if (event.type === "done") this.#messages = [...asked, { role: "assistant", content: answer }];
        yield event;
      }
    } finally {
      this.#answering = false;
    }
  }

  clone(): SessionApi {
    this.requireIdle();
    return new RemoteSession(this.#remote, { messages: this.#messages }, this);
  }

  async save(name: string): Promise<void> {
    this.requireIdle();
    await this.call("save", name);
  }

  async restore(name: string): Promise<void> {
    this.requireIdle();
    this.#messages = (await this.call("restore", name)) as readonly Message[];
  }

  close(): void {
    this.#closed = true;
    this.call("close").catch(() => undefined);
  }

  private async call(method: string, ...args: readonly unknown[]): Promise<unknown> {
    await this.#created;
    return this.#remote.call(["sessions", method], [this.#id, ...args]);
  }

  private requireIdle(): void {
    if (this.#closed) throw new RequestError("The session is closed; create another");
    if (this.#answering)
      throw new RequestError(
        "The session is generating an answer; wait for its end, abort it, or clone the session before",
      );
  }
}

// The worker's side of sessions: the sessions of one connection, by the ids that the page chose.

import type { EngineWithSessions, SessionApi } from "../api/engine_api.js";
import { RequestError } from "../errors.js";
import type { GenerationEvent, SessionGenerateOptions } from "../generation.js";
import type { SessionOptions } from "../session.js";
import type { Message } from "../text/chat_template.js";

/** The methods that a page calls; see RemoteSession. */
export class ServedSessions {
  readonly #sessions = new Map<string, SessionApi>();

  /** ``engine`` throws RequestError if the engine has no sessions. */
  constructor(private readonly engine: () => Pick<EngineWithSessions, "createSession">) {}

  create(id: string, options: SessionOptions): void {
    this.#sessions.set(id, this.engine().createSession(options));
  }

  clone(id: string, copy: string): void {
    this.#sessions.set(copy, this.#find(id).clone());
  }

  generate(id: string, content: string, options: SessionGenerateOptions): AsyncIterable<GenerationEvent> {
    return this.#find(id).generate(content, options);
  }

  save(id: string, name: string): Promise<void> {
    return this.#find(id).save(name);
  }

  async restore(id: string, name: string): Promise<readonly Message[]> {
    const session = this.#find(id);
    await session.restore(name);
    return session.messages;
  }

  close(id: string): void {
    this.#sessions.get(id)?.close();
    this.#sessions.delete(id);
  }

  /** The connection has ended. */
  closeAll(): void {
    for (const id of [...this.#sessions.keys()]) this.close(id);
  }

  #find(id: string): SessionApi {
    const session = this.#sessions.get(id);
    if (session === undefined) throw new RequestError("The worker does not know the session; create another");
    return session;
  }
}

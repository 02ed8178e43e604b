// The worker's side: after a script of a worker or a service worker calls serveEngine(self), pages can connect to it.

import type { EngineApi, EngineWithSessions, SessionApi } from "../api/engine_api.js";
import { anySignal } from "../api/stream.js";
import { Engine } from "../engine.js";
import type { AnswerEnd, GeneratedToken, TokenRequest } from "../engine/request.js";
import { RequestError } from "../errors.js";
import type { ChatMessage, GenerationEvent, SessionGenerateOptions } from "../generation.js";
import type { LoadOptions } from "../load_options.js";
import type { TuningEntry } from "../runtime/manifest.js";
import type { SessionContent, SessionOptions } from "../session.js";
import { hold, whenGone } from "./liveness.js";
import { serve } from "./serve.js";
import type { LoadEngine, Loan } from "./shared_engines.js";
import { SharedEngines } from "./shared_engines.js";
import type { Greeting } from "./wire.js";

/** A worker's or a service worker's global scope, or a port. */
export interface WorkerScope {
  addEventListener(type: "message", listener: (event: MessageEvent) => void): void;
}

/** Options of every engine that a worker loads, which a page cannot send. */
export type ServeOptions = Pick<LoadOptions, "encoders" | "grammar" | "images" | "transcriber" | "tuning">;

/**
 * The time that a service worker stays alive after a page's last message. The timers of a hidden page fire once a
 * minute.
 */
const KEEP_ALIVE_MS = 120_000;

/** The methods that a page calls; see connectEngine. */
class Connection {
  readonly sessions = new ServedSessions(() => this.#require("createSession"));
  #loan: Loan | null = null;

  constructor(
    private readonly engines: SharedEngines,
    private readonly over: AbortSignal,
    /** Resolves when the page can wait for this end's lock. */
    readonly hello: () => Promise<void>,
    /** Ends the connection. */
    readonly disconnect: () => void,
  ) {}

  get engine(): EngineApi {
    if (this.#loan === null) throw new RequestError("The worker's engine is not loaded; connect again");
    return this.#loan.engine;
  }

  async load(bundles: readonly string[], options: LoadOptions): Promise<EngineApi["info"]> {
    this.#loan = await this.engines.borrow(bundles, { ...options, signal: anySignal(options.signal, this.over) });
    return this.#loan.engine.info;
  }

  generateTokens(request: TokenRequest): AsyncGenerator<GeneratedToken, AnswerEnd, undefined> {
    return this.#require("generateTokens").generateTokens(request);
  }

  exportTuning(): Promise<TuningEntry | null> {
    return this.#require("exportTuning").exportTuning();
  }

  loadAdapter(...args: Parameters<Engine["loadAdapter"]>): Promise<void> {
    return this.#require("loadAdapter").loadAdapter(...args);
  }

  unloadAdapter(name: string): Promise<void> {
    return this.#require("unloadAdapter").unloadAdapter(name);
  }

  listAdapters(): Promise<readonly string[]> {
    return this.#require("listAdapters").listAdapters();
  }

  unload(): boolean {
    return this.#require("unload").unload();
  }

  /** A script's own LoadEngine may return an engine without the methods that EngineApi does not have. */
  #require<K extends keyof Engine>(method: K): Pick<Engine, K> {
    const engine = this.engine as EngineApi & Partial<Engine>;
    if (engine[method] === undefined)
      throw new RequestError(`The worker's engine has no ${method}; load it with Engine.load`);
    return engine as unknown as Pick<Engine, K>;
  }

  release(): void {
    this.sessions.closeAll();
    this.#loan?.release();
    this.#loan = null;
  }
}

/**
 * Serve engines to all pages that connect. Pages that name the same bundle share one engine. ``loadOrOptions`` is a
 * replacement for Engine.load, or options for it; a service worker needs `grammar` for structured output, `encoders` for models of
 * vectors or scores, `images` for models that see, and `tuning` to measure what suits the device. Call
 * serveEngine while the script starts, because a service worker must add its listeners by then.
 */
export function serveEngine(scope: WorkerScope, loadOrOptions: LoadEngine | ServeOptions = {}): void {
  const load: LoadEngine =
    typeof loadOrOptions === "function"
      ? loadOrOptions
      : async (bundles, options) => Engine.load(bundles, { ...options, ...loadOrOptions });
  const engines = new SharedEngines(load);
  const connections = new Set<string>();

  const connect = (connection: string, port: MessagePort): void => {
    const over = new AbortController();
    const disconnect = (): void => {
      over.abort();
      stop();
      target.release();
      connections.delete(connection);
    };
    const held = hold(connection, "worker", over.signal);
    const target = new Connection(engines, over.signal, () => held, disconnect);
    const stop = serve(port, target);
    connections.add(connection);
    // Browsers differ: the end of a page causes one of these events, or neither.
    port.addEventListener("close", disconnect);
    whenGone(connection, "page", over.signal, disconnect);
  };

  scope.addEventListener("message", (event) => {
    const greeting = Object(event.data) as Partial<Greeting>;
    const [port] = event.ports;
    if (greeting.connection === undefined || port === undefined) return;
    if (greeting.nearfar === "connect") connect(greeting.connection, port);
    else if (greeting.nearfar === "ping") port.postMessage(connections.has(greeting.connection));
    else return;
    if ("waitUntil" in event && typeof event.waitUntil === "function")
      keepAlive(event as MessageEvent & { waitUntil(promise: Promise<unknown>): void });
  });
}

function keepAlive(event: MessageEvent & { waitUntil(promise: Promise<unknown>): void }): void {
  event.waitUntil(new Promise((resolve) => setTimeout(resolve, KEEP_ALIVE_MS)));
}

/** The sessions of one connection, by the ids that the page chose, with the methods that RemoteSession calls. */
class ServedSessions {
  readonly #sessions = new Map<string, SessionApi>();

  /** ``engine`` throws RequestError if the engine has no sessions. */
  constructor(private readonly engine: () => Pick<EngineWithSessions, "createSession">) {}

  create(id: string, options: SessionOptions): void {
    this.#sessions.set(id, this.engine().createSession(options));
  }

  clone(id: string, copy: string): void {
    this.#sessions.set(copy, this.#find(id).clone());
  }

  generate(id: string, content: SessionContent, options: SessionGenerateOptions): AsyncIterable<GenerationEvent> {
    return this.#find(id).generate(content, options);
  }

  save(id: string, name: string): Promise<void> {
    return this.#find(id).save(name);
  }

  async restore(id: string, name: string): Promise<readonly ChatMessage[]> {
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

// Engines in the service worker of a browser extension. Pages of the extension reach it over ports of chrome.runtime,
// whose messages are JSON.

import { WorkerError } from "../errors.js";
import { Remote } from "../worker/remote.js";
import type { ServeOptions } from "../worker/serve_engine.js";
import type { WirePort } from "../worker/wire.js";
import type { ChatOptions, MLCEngineConfig } from "./config.js";
import type { Connection } from "./connection.js";
import type { MLCEngine } from "./engine.js";
import { RemoteMLCEngine } from "./worker_engine.js";
import { WebWorkerMLCEngineHandler } from "./worker_handler.js";

const PORT_NAME = "web_llm_service_worker";
/** The browser stops an extension's service worker after 30 seconds without messages on its ports. */
const KEEP_ALIVE_MS = 10_000;
const KEEP_ALIVE = { nearfar: "ping" };

/** The part of chrome.runtime.Port that is used. */
export interface ExtensionPort {
  postMessage(message: unknown): void;
  readonly onMessage: { addListener(listener: (message: unknown) => void): void };
  readonly onDisconnect: { addListener(listener: () => void): void };
}

export interface ExtensionMLCEngineConfig extends MLCEngineConfig {
  /** The id of the extension with the service worker, for a page outside of that extension. */
  extensionId?: string | undefined;
  /** Called when the service worker was stopped. The next call starts it and loads the models again. */
  onDisconnect?: (() => void) | undefined;
}

/**
 * One handler for all ports. Make it with the first port, call `setPort` for each further port, and `onmessage` with
 * the messages of each. ``engineOrOptions`` is an engine, or options for the engine that the handler makes.
 */
export class ExtensionServiceWorkerMLCEngineHandler extends WebWorkerMLCEngineHandler {
  readonly #listeners = new Map<ExtensionPort, (message: unknown) => void>();
  /** The newest port. Messages without a port belong to it. */
  port: ExtensionPort;

  constructor(port: ExtensionPort, engineOrOptions: MLCEngine | ServeOptions = {}) {
    super(engineOrOptions);
    this.port = port;
    this.setPort(port);
  }

  setPort(port: ExtensionPort): void {
    this.port = port;
    const stop = this.serve(wirePort(port, (listener) => this.#listeners.set(port, listener)));
    port.onDisconnect.addListener(() => {
      this.#listeners.delete(port);
      stop();
    });
  }

  /** A listener for chrome.runtime, which calls it with the message and its port. */
  override onmessage(message: unknown, port: ExtensionPort = this.port): void {
    if (Object(message) !== message || !("nearfar" in (message as object))) this.#listeners.get(port)?.(message);
  }
}

export class ExtensionServiceWorkerMLCEngine extends RemoteMLCEngine {
  constructor(
    private readonly config: ExtensionMLCEngineConfig = {},
    private readonly keepAliveMs = KEEP_ALIVE_MS,
  ) {
    super(config, ["extensionId", "onDisconnect"]);
  }

  /** Throws WorkerError outside of an extension's pages. */
  // Async, so that it rejects instead of throwing.
  // oxlint-disable-next-line typescript/require-await
  protected override async open(): Promise<Connection> {
    const { chrome } = globalThis as {
      readonly chrome?: { readonly runtime?: { connect?(...args: unknown[]): ExtensionPort } };
    };
    const { extensionId, onDisconnect } = this.config;
    const port = chrome?.runtime?.connect?.(...(extensionId === undefined ? [] : [extensionId]), { name: PORT_NAME });
    if (port === undefined)
      throw new WorkerError(
        "This page has no chrome.runtime; make the engine on a page of the extension, or pass its extensionId",
      );
    const over = new AbortController();
    const listen = port.onMessage.addListener.bind(port.onMessage);
    const remote = new Remote(wirePort(port, listen));
    const timer = setInterval(() => {
      port.postMessage(KEEP_ALIVE);
    }, this.keepAliveMs);
    const close = (): void => {
      clearInterval(timer);
      over.abort();
      remote.close(new WorkerError("The extension's service worker is gone; the next call connects again"));
    };
    port.onDisconnect.addListener(() => {
      close();
      onDisconnect?.();
    });
    return { remote, over: over.signal, close };
  }
}

/** An engine in the extension's service worker with its models loaded. */
export async function CreateExtensionServiceWorkerMLCEngine(
  modelId: string | string[],
  engineConfig?: ExtensionMLCEngineConfig,
  chatOpts?: ChatOptions | ChatOptions[],
  keepAliveMs?: number,
): Promise<ExtensionServiceWorkerMLCEngine> {
  const engine = new ExtensionServiceWorkerMLCEngine(engineConfig, keepAliveMs);
  await engine.reload(modelId, chatOpts);
  return engine;
}

/** ``listen`` subscribes a listener to the messages of the port. */
function wirePort(port: ExtensionPort, listen: (listener: (message: unknown) => void) => void): WirePort {
  return {
    postMessage: (message) => {
      port.postMessage(message);
    },
    addEventListener: (_type, listener) => {
      listen((data) => {
        listener({ data });
      });
    },
    start: () => undefined,
    close: () => undefined,
  };
}

// WebWorkerMLCEngineHandler: serves an engine to the pages that connect to it.

import { Engine } from "../engine.js";
import { RequestError } from "../errors.js";
import { hold, whenGone } from "../worker/liveness.js";
import { serve } from "../worker/serve.js";
import type { ServeOptions } from "../worker/serve_engine.js";
import type { Greeting, WirePort } from "../worker/wire.js";
import { MLCEngine } from "./engine.js";
import type { InitProgressCallback, LogitProcessor } from "./interface.js";
import type { Expected, HandlerTarget, Method } from "./protocol.js";

const METHODS: readonly string[] = [
  "chatCompletion",
  "completion",
  "embedding",
  "unload",
  "interruptGenerate",
  "resetChat",
  "getMessage",
  "runtimeStatsText",
  "forwardTokensAndSample",
  "getMaxStorageBufferBindingSize",
  "getGPUVendor",
] satisfies Method[];

/** The methods that need no model. */
const WITHOUT_MODEL: readonly Method[] = [
  "unload",
  "interruptGenerate",
  "getMaxStorageBufferBindingSize",
  "getGPUVendor",
];

export class WebWorkerMLCEngineHandler {
  readonly #connections = new Set<string>();
  /** The models that the engine has or is loading, as JSON. */
  #key: string | null = null;
  #loaded: Promise<void> = Promise.resolve();

  readonly engine: MLCEngine;

  /** ``engineOrOptions`` is an engine, or options for the engine that the handler makes. */
  constructor(engineOrOptions: MLCEngine | ServeOptions = {}) {
    this.engine =
      engineOrOptions instanceof MLCEngine
        ? engineOrOptions
        : new MLCEngine({}, (bundle, options) => Engine.load(bundle, { ...options, ...engineOrOptions }));
    // Scripts pass this method on as a function.
    this.onmessage = this.onmessage.bind(this);
  }

  /** Sets the logit processors by model id. Applies to models that are loaded from now on. */
  setLogitProcessorRegistry(registry?: Map<string, LogitProcessor>): void {
    this.engine.setLogitProcessorRegistry(registry);
  }

  /** Call it with the worker's messages. It ignores messages that are not for a handler. */
  onmessage(event: MessageEvent): void {
    const greeting = Object(event.data) as Partial<Greeting>;
    const [port] = event.ports;
    if (greeting.connection === undefined || port === undefined) return;
    if (greeting.nearfar === "connect") this.#connect(greeting.connection, port);
    else if (greeting.nearfar === "ping") port.postMessage(this.#connections.has(greeting.connection));
  }

  /** Serves the engine over a port. Returns a function that ends all calls of the port. */
  protected serve(
    port: WirePort,
    hello: () => Promise<void> = () => Promise.resolve(),
    disconnect: () => void = () => undefined,
  ): () => void {
    const target: HandlerTarget = {
      hello,
      disconnect,
      reload: async (expected, onProgress) => {
        const isKnown = this.#key === JSON.stringify(expected);
        await this.#requireModels(expected, onProgress);
        if (isKnown)
          onProgress?.({ progress: 1, timeElapsed: 0, text: `Already loaded ${expected.modelId.join(", ")}` });
      },
      request: async (expected, method, ...args) => {
        if (!METHODS.includes(method))
          throw new RequestError(
            `The handler has no method '${method}'; load the same version of the package on both sides`,
          );
        if (method === "unload") this.#key = null;
        if (expected !== null && !WITHOUT_MODEL.includes(method)) await this.#requireModels(expected);
        return (this.engine[method] as (...args: readonly unknown[]) => unknown)(...args);
      },
    };
    return serve(port, target);
  }

  #connect(connection: string, port: MessagePort): void {
    const over = new AbortController();
    const disconnect = (): void => {
      over.abort();
      stop();
      this.#connections.delete(connection);
    };
    const held = hold(connection, "worker", over.signal);
    const stop = this.serve(port, () => held, disconnect);
    this.#connections.add(connection);
    port.addEventListener("close", disconnect);
    whenGone(connection, "page", over.signal, disconnect);
  }

  /** Loads the models unless the engine has them. Throws what `reload` throws. */
  async #requireModels(expected: Expected, onProgress?: InitProgressCallback): Promise<void> {
    const key = JSON.stringify(expected);
    if (this.#key !== key) {
      this.#key = key;
      this.#loaded = this.#reload(expected, onProgress).catch((error: unknown) => {
        if (this.#key === key) this.#key = null;
        throw error;
      });
    }
    await this.#loaded;
  }

  async #reload(
    { modelId, chatOpts, appConfig }: Expected,
    onProgress: InitProgressCallback | undefined,
  ): Promise<void> {
    if (onProgress !== undefined) this.engine.setInitProgressCallback(onProgress);
    if (appConfig !== null) this.engine.setAppConfig(appConfig);
    await this.engine.reload([...modelId], [...chatOpts]);
  }
}

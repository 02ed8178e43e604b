// An engine in a service worker, which several pages share.

import { WorkerError } from "../errors.js";
import type { ServeOptions, WorkerScope } from "../worker/serve_engine.js";
import type { ChatOptions, MLCEngineConfig } from "./config.js";
import type { Connection } from "./connection.js";
import { connectHandler } from "./connection.js";
import type { MLCEngine } from "./engine.js";
import { RemoteMLCEngine } from "./worker_engine.js";
import { WebWorkerMLCEngineHandler } from "./worker_handler.js";

/** The time between two heartbeats of a page. */
const KEEP_ALIVE_MS = 10_000;
/**
 * The time that a service worker stays alive after the last message. The timers of a hidden page fire once a minute.
 *
 */
const STAY_MS = 120_000;

/**
 * Make it while the service worker's script starts, because its listener must exist before the first message. The
 * engine stays loaded while pages come and go, until the browser stops the service worker. ``engineOrOptions`` is an
 * engine, or options for the engine that the handler makes; structured output needs ``grammar``. ``scope`` sends the
 * messages.
 */
export class ServiceWorkerMLCEngineHandler extends WebWorkerMLCEngineHandler {
  constructor(engineOrOptions: MLCEngine | ServeOptions = {}, scope: WorkerScope = globalThis) {
    super(engineOrOptions);
    scope.addEventListener("message", (event) => {
      this.onmessage(event);
    });
  }

  override onmessage(event: MessageEvent): void {
    super.onmessage(event);
    if ("waitUntil" in event && typeof event.waitUntil === "function") {
      (event as MessageEvent & { waitUntil(promise: Promise<unknown>): void }).waitUntil(
        new Promise((resolve) => setTimeout(resolve, STAY_MS)),
      );
    }
  }
}

export class ServiceWorkerMLCEngine extends RemoteMLCEngine {
  /** The number of consecutive heartbeats that the service worker has not answered. */
  missedHeartbeat = 0;

  /** ``keepAliveMs``: the time between two heartbeats, which keep the browser from stopping the service worker. */
  constructor(
    engineConfig?: MLCEngineConfig,
    private readonly keepAliveMs = KEEP_ALIVE_MS,
  ) {
    super(engineConfig);
  }

  /** Throws WorkerError if the page cannot use service workers. */
  protected override async open(): Promise<Connection> {
    if (typeof navigator === "undefined" || !("serviceWorker" in navigator)) {
      throw new WorkerError(
        "This page cannot use service workers; open it over https or from localhost, in a browser that supports them",
      );
    }
    const { active } = await navigator.serviceWorker.ready;
    if (active === null)
      throw new WorkerError("The service worker is not active yet; register it before the engine is made");
    return connectHandler(active, this.keepAliveMs, (count) => {
      this.missedHeartbeat = count;
    });
  }
}

/** An engine in this page's service worker with its models loaded. Waits until the page's service worker is active. */
export async function CreateServiceWorkerMLCEngine(
  modelId: string | string[],
  engineConfig?: MLCEngineConfig,
  chatOpts?: ChatOptions | ChatOptions[],
  keepAliveMs?: number,
): Promise<ServiceWorkerMLCEngine> {
  const engine = new ServiceWorkerMLCEngine(engineConfig, keepAliveMs);
  await engine.reload(modelId, chatOpts);
  return engine;
}

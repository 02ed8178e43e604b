// WebWorkerMLCEngine: an engine that runs in a worker whose script makes a WebWorkerMLCEngineHandler.

import { RequestError } from "../errors.js";
import type { WorkerLike } from "../worker/connect_engine.js";
import type { ChatOptions, MLCEngineConfig } from "./config.js";
import { findRecord } from "./config.js";
import type { Connection } from "./connection.js";
import { connectHandler } from "./connection.js";
import type { RequestMethod } from "./engine_base.js";
import { MLCEngineBase } from "./engine_base.js";
import type { MLCEngineInterface } from "./interface.js";
import type { Expected, Method } from "./protocol.js";

const HEARTBEAT_MS = 5_000;

/**
 * Calls a handler over a connection. The first call opens the connection. The first call after its end opens it again,
 * and the models are loaded again.
 */
export abstract class RemoteMLCEngine extends MLCEngineBase implements MLCEngineInterface {
  #connection: Promise<Connection> | null = null;
  #expected: Expected | null = null;
  #loading: Promise<unknown> = Promise.resolve();

  /**
   * ``others`` are keys of the configuration that a subclass reads. Throws RequestError for a configuration that is not
   * supported.
   */
  constructor(config: MLCEngineConfig = {}, others: readonly string[] = []) {
    super(config, others);
    if (config.logitProcessorRegistry !== undefined) {
      const problem = "works on logits in the worker; call setLogitProcessorRegistry of the handler there";
      throw new RequestError(`engineConfig.logitProcessorRegistry ${problem}`, { param: "logitProcessorRegistry" });
    }
  }

  protected abstract open(): Promise<Connection>;

  protected override answer(method: RequestMethod, request: object): Promise<unknown> {
    return this.#request(method, request);
  }

  async reload(modelId: string | string[], chatOpts: ChatOptions | ChatOptions[] = {}): Promise<void> {
    const ids = typeof modelId === "string" ? [modelId] : modelId;
    // Relative addresses are resolved against the page, not the worker.
    const list = ids
      .map((id) => findRecord(id, this.appConfig))
      .map((record) => ({ ...record, model: absolute(record.model) }));
    const expected: Expected = {
      modelId: [...ids],
      chatOpts: Array.isArray(chatOpts) ? chatOpts : ids.map(() => chatOpts),
      appConfig: { model_list: list },
    };
    this.#expected = expected;
    const { remote } = await this.connection();
    // `unload` or another `reload` was called meanwhile.
    if (this.#expected !== expected) return;
    const loading = remote.call(["reload"], [expected, this.onProgress]);
    this.#loading = loading;
    await loading;
  }

  async unload(): Promise<void> {
    this.#expected = null;
    const connection = await this.connection();
    await connection.remote.call(["request"], [null, "unload" satisfies Method]);
    // The load that this ends has its answer before the connection ends.
    await this.#loading.catch(() => undefined);
    // Without its heartbeats, the browser may stop a service worker.
    connection.close();
  }

  interruptGenerate(): void {
    void this.#request("interruptGenerate").catch(() => undefined);
  }

  async resetChat(keepStats = false, modelId?: string): Promise<void> {
    await this.#request("resetChat", keepStats, modelId);
  }

  async getMessage(modelId?: string): Promise<string> {
    return (await this.#request("getMessage", modelId)) as string;
  }

  async runtimeStatsText(modelId?: string): Promise<string> {
    return (await this.#request("runtimeStatsText", modelId)) as string;
  }

  async forwardTokensAndSample(inputIds: number[], isPrefill: boolean, modelId?: string): Promise<number> {
    return (await this.#request("forwardTokensAndSample", inputIds, isPrefill, modelId)) as number;
  }

  async getMaxStorageBufferBindingSize(): Promise<number> {
    return (await this.#request("getMaxStorageBufferBindingSize")) as number;
  }

  async getGPUVendor(): Promise<string> {
    return (await this.#request("getGPUVendor")) as string;
  }

  async #request(method: Method, ...args: readonly unknown[]): Promise<unknown> {
    const { remote } = await this.connection();
    return remote.call(["request"], [this.#expected, method, ...args]);
  }

  /** One connection for all calls, until it ends. */
  private connection(): Promise<Connection> {
    if (this.#connection !== null) return this.#connection;
    const opened = this.open();
    const forget = (): void => {
      if (this.#connection === opened) this.#connection = null;
    };
    this.#connection = opened;
    opened.then(({ over }) => {
      if (over.aborted) forget();
      else over.addEventListener("abort", forget);
    }, forget);
    return opened;
  }
}

export class WebWorkerMLCEngine extends RemoteMLCEngine {
  constructor(
    readonly worker: WorkerLike,
    engineConfig?: MLCEngineConfig,
  ) {
    super(engineConfig);
  }

  protected override open(): Promise<Connection> {
    return connectHandler(this.worker, HEARTBEAT_MS);
  }
}

/** An engine in a worker with its models loaded. */
export async function CreateWebWorkerMLCEngine(
  worker: WorkerLike,
  modelId: string | string[],
  engineConfig?: MLCEngineConfig,
  chatOpts?: ChatOptions | ChatOptions[],
): Promise<WebWorkerMLCEngine> {
  const engine = new WebWorkerMLCEngine(worker, engineConfig);
  await engine.reload(modelId, chatOpts);
  return engine;
}

function absolute(address: string): string {
  return typeof document === "undefined" ? address : new URL(address, document.baseURI).href;
}

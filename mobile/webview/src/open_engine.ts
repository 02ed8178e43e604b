// Opens an engine for a page: in its own worker, or on the page if workers of the web view have no WebGPU.

import type { EngineApi } from "@nearfar/web/client";
import { connectEngine } from "@nearfar/web/client";

export type ConnectOptions = NonNullable<Parameters<typeof connectEngine>[2]>;

export interface EngineStarters {
  /** Starts a worker whose script calls serveEngine of @nearfar/web/worker. */
  readonly startWorker: () => Worker;
  /** Engine.load of @nearfar/web, imported when it is called. */
  readonly loadHere?: ((bundle: string, options: ConnectOptions) => Promise<EngineApi>) | undefined;
}

export interface OpenEngine {
  readonly engine: EngineApi;
  readonly place: "worker" | "page";
  /** Frees the device, and the worker's memory with it. */
  close(): void;
}

/** Throws the errors of loading. */
export async function openEngine(
  bundle: string,
  options: ConnectOptions,
  { startWorker, loadHere }: EngineStarters,
): Promise<OpenEngine> {
  const worker = startWorker();
  try {
    const engine = await connectEngine(worker, bundle, options);
    const close = (): void => {
      engine.destroy();
      worker.terminate();
    };
    return { engine, place: "worker", close };
  } catch (error) {
    worker.terminate();
    if (loadHere === undefined || !lacksGpu(error)) throw error;
  }
  const engine = await loadHere(bundle, options);
  const close = (): void => {
    engine.destroy();
  };
  return { engine, place: "page", close };
}

function lacksGpu(error: unknown): boolean {
  const { code, details } = Object(error) as {
    readonly code?: string;
    readonly details?: { readonly missing?: unknown };
  };
  return code === "device_error" && details?.missing === "navigator.gpu";
}

// Fakes: an engine that counts, a worker in this thread, both ends of a web view, and a scope with WebGPU.

import type { EngineApi } from "@nearfar/web";
import { WorkerError } from "@nearfar/web/calls";
import type { LoadEngine } from "@nearfar/web/worker";
import { serveEngine } from "@nearfar/web/worker";

import { expect, vi } from "vitest";

import type { HostOptions } from "../src/engine_host.js";
import { EngineHost } from "../src/engine_host.js";
import type { SupportScope } from "../src/support.js";
import type { Transport } from "../src/transport.js";

export const SUPPORTED: SupportScope = {
  isSecureContext: true,
  navigator: { userAgent: "Android", gpu: { requestAdapter: () => Promise.resolve({}) } },
};

export const pause = (ms = 5): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

/** Waits until the check succeeds, because messages may take long on a busy machine. */
export const until = (check: () => void): Promise<void> => vi.waitFor(check, { timeout: 50_000, interval: 2 });

/** Counts of all fake engines of a host. */
export interface Log {
  readonly loads: string[];
  readonly calls: string[];
  /** Items that were generated for streams. */
  made: number;
  running: number;
  destroyed: number;
  terminated: number;
}

/** A chat streams the numbers from 0 without end. */
function fakeEngine(log: Log, model: string): EngineApi {
  async function* count(signal?: AbortSignal): AsyncGenerator<{ readonly n: number }> {
    log.running++;
    try {
      for (let n = 0; ; n++) {
        await pause(0);
        signal?.throwIfAborted();
        log.made++;
        yield { n };
      }
    } finally {
      log.running--;
    }
  }
  const note = (call: string) => (): Promise<void> => {
    log.calls.push(call);
    return Promise.resolve();
  };
  return {
    info: { model, weightBytes: 70, stateBytes: 20, totalBytes: 100 },
    chat: {
      completions: {
        create: (_: unknown, options?: { readonly signal?: AbortSignal }) => Promise.resolve(count(options?.signal)),
      },
    },
    generate: () => count(),
    embeddings: { create: () => Promise.resolve({ vector: Float32Array.of(0.5, -2) }) },
    countTokens: (text: string) => {
      if (text === "bad") return Promise.reject(new RangeError("bad"));
      return text === "die" ? Promise.reject(new WorkerError("The worker is gone")) : Promise.resolve(text.length);
    },
    pause: note("pause"),
    resume: note("resume"),
    destroy: () => log.destroyed++,
  } as unknown as EngineApi;
}

/** A worker whose engine is loaded by ``load``. */
function fakeWorker(load: LoadEngine, log: Log): Worker {
  const { port1, port2 } = new MessageChannel();
  serveEngine(port2, load);
  port2.start();
  // An unused channel must not keep Node running.
  for (const port of [port1, port2]) (port as unknown as { unref(): void }).unref();
  return {
    postMessage: (message: unknown, transfer: Transferable[]) => {
      port1.postMessage(message, transfer);
    },
    addEventListener: () => undefined,
    terminate: () => log.terminated++,
  } as unknown as Worker;
}

export function fakeHost(
  load: LoadEngine | null = null,
  rest: Partial<HostOptions> = {},
): { readonly host: EngineHost; readonly log: Log } {
  const log: Log = { loads: [], calls: [], made: 0, running: 0, destroyed: 0, terminated: 0 };
  const usual: LoadEngine = async ([bundle = ""], { onProgress, signal }) => {
    log.loads.push(bundle);
    await pause();
    signal?.throwIfAborted();
    for (const phase of ["download", "download", "ready"] as const) {
      onProgress?.({ phase, loadedBytes: 5, storedBytes: 0, totalBytes: 5, compiledKernels: 1, totalKernels: 1 });
    }
    return fakeEngine(log, bundle);
  };
  const host = new EngineHost({ startWorker: () => fakeWorker(load ?? usual, log), scope: SUPPORTED, ...rest });
  return { host, log };
}

/** The last frame that the page sent, if it is the expected one. */
export async function lastOfPage({ sent }: Ends, expected: object): Promise<void> {
  await until(() => {
    expect(JSON.parse(sent.page.at(-1) ?? "null")).toMatchObject(expected);
  });
}

export interface Ends {
  readonly app: Transport;
  readonly page: Transport;
  /** The end of the next page. After this, the current page neither sends nor receives. */
  reload(): Transport;
  /** All texts, by their sender. */
  readonly sent: { readonly app: string[]; readonly page: string[] };
}

/** A web view: texts arrive at the other end a moment later. */
export function webViewEnds(): Ends {
  const sent = { app: [] as string[], page: [] as string[] };
  const listeners = { app: new Set<(text: string) => void>(), page: new Set<(text: string) => void>() };
  let pages = 0;
  const end = (mine: "app" | "page", other: "app" | "page", page = pages): Transport => ({
    send: (text) => {
      if (mine === "page" && page !== pages) return;
      sent[mine].push(text);
      queueMicrotask(() => {
        for (const listener of listeners[other]) listener(text);
      });
    },
    listen: (listener) => {
      listeners[mine].add(listener);
      return () => listeners[mine].delete(listener);
    },
  });
  const reload = (): Transport => {
    listeners.page.clear();
    return end("page", "app", ++pages);
  };
  return { app: end("app", "page"), page: end("page", "app"), reload, sent };
}

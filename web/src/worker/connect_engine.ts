// The page's side: connectEngine gives an engine that runs in a worker or a service worker as if it were here.

import type { EngineApi, EngineWithSessions } from "../api/engine_api.js";
import type { LoadOptions } from "../load.js";
import { RequestError, WorkerError } from "../errors.js";
import type { OnnxOptions } from "../onnx/options.js";
import { requireSecureContext } from "../runtime/device.js";
import { hold, whenGone } from "./liveness.js";
import { Remote } from "./remote.js";
import { RemoteSession } from "./remote_session.js";
import type { Greeting } from "./wire.js";

/** A Worker, or a service worker: the ``active`` one of a registration. */
export interface WorkerLike {
  postMessage(message: unknown, transfer: Transferable[]): void;
  addEventListener(type: string, listener: (event: Event) => void, options?: { readonly signal: AbortSignal }): void;
}

/** What of LoadOptions can be sent to a worker: a device and a grammar compiler cannot, and ONNX Runtime only by its module's address. */
export interface ConnectOptions extends Omit<LoadOptions, "gpu" | "adapter" | "grammar" | "onnx"> {
  readonly onnx?: (Omit<OnnxOptions, "runtime"> & { readonly runtime: string | URL }) | undefined;
}

const PING_MS = 5_000;
/** A worker that compiles kernels may be late with an answer, so it takes several pings without one. */
const MISSED_PINGS = 6;

/**
 * Load the bundle in a worker whose script calls serveEngine. Addresses are relative to the page. Throws what Engine.load throws, and WorkerError
 * where the worker's script does not start; calls that are under way when a worker dies throw WorkerError, at once where the browser has Web Locks.
 */
export async function connectEngine(
  worker: WorkerLike,
  bundle: string | URL | readonly (string | URL)[],
  options: ConnectOptions = {},
): Promise<EngineWithSessions> {
  options.signal?.throwIfAborted();
  requireSecureContext();
  const connection = crypto.randomUUID();
  const { port1, port2 } = new MessageChannel();
  const remote = new Remote(port1);
  const over = new AbortController();
  const fail = (message: string): void => {
    over.abort();
    remote.close(new WorkerError(message));
  };
  let isLoaded = false;
  worker.addEventListener(
    "error",
    (event) => {
      // Later on an uncaught error need not be the end of a worker.
      if (!isLoaded)
        fail(
          `The worker's script failed${"message" in event ? `: ${String(event.message)}` : ""}; see the console, and whether it calls serveEngine`,
        );
    },
    { signal: over.signal },
  );
  const gone = (): void => {
    fail("The worker is gone; start it again and connect again");
  };
  port1.addEventListener("close", gone);
  await hold(connection, "page", over.signal);
  worker.postMessage({ nearfar: "connect", connection } satisfies Greeting, [port2]);
  watch(worker, connection, over.signal, fail);
  const absolute = (address: string | URL): string =>
    new URL(address, typeof document === "undefined" ? undefined : document.baseURI).href;
  const addresses = (typeof bundle === "string" || bundle instanceof URL ? [bundle] : bundle).map(absolute);
  const { onnx } = options;
  const sent = onnx === undefined ? options : { ...options, onnx: { ...onnx, runtime: absolute(onnx.runtime) } };
  const disconnect = (message: string): void => {
    over.abort();
    // Not every browser tells the worker that the port was closed.
    remote.call(["disconnect"], []).catch(() => undefined);
    remote.close(new WorkerError(message));
  };
  try {
    await remote.call(["hello"], [{ signal: options.signal }]);
    whenGone(connection, "worker", over.signal, gone);
    const info = (await remote.call(["load"], [addresses, sent])) as EngineApi["info"];
    isLoaded = true;
    const engine = remoteEngine(remote, info, () => {
      disconnect("The engine was destroyed");
    });
    return { ...engine, createSession: (session) => new RemoteSession(remote, session) };
  } catch (error) {
    disconnect("The engine was not loaded");
    throw error;
  }
}

/** The engine that the other side serves as ``engine``. */
export function remoteEngine(remote: Remote, info: EngineApi["info"], destroy: () => void): EngineApi {
  const method =
    (...path: readonly string[]) =>
    (...args: readonly unknown[]) => {
      if (args.some((arg) => (Object(arg) as { logitProcessor?: unknown }).logitProcessor !== undefined)) {
        return Promise.reject(
          new RequestError("logitProcessor cannot be used with an engine in a worker", { param: "logitProcessor" }),
        );
      }
      return remote.call(["engine", ...path], args);
    };
  return {
    info,
    chat: {
      completions: { create: method("chat", "completions", "create") as EngineApi["chat"]["completions"]["create"] },
    },
    completions: { create: method("completions", "create") as EngineApi["completions"]["create"] },
    embeddings: { create: method("embeddings", "create") as EngineApi["embeddings"]["create"] },
    countTokens: method("countTokens") as EngineApi["countTokens"],
    async *generate(...args) {
      yield* (await method("generate")(...args)) as ReturnType<EngineApi["generate"]>;
    },
    pause: method("pause") as EngineApi["pause"],
    resume: method("resume") as EngineApi["resume"],
    destroy,
  };
}

/** Asks again and again whether the worker still knows the connection, for browsers without locks; it keeps a service worker from being stopped, too. */
function watch(worker: WorkerLike, connection: string, over: AbortSignal, fail: (message: string) => void): void {
  let missed = 0;
  const timer = setInterval(() => {
    if (++missed > MISSED_PINGS) {
      fail(
        `The worker has not answered for ${(PING_MS * MISSED_PINGS) / 1000} seconds; start it again and connect again`,
      );
      return;
    }
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = ({ data }: MessageEvent<boolean>) => {
      missed = 0;
      port1.close();
      if (!data) fail("The worker was started anew and does not know this page; connect again");
    };
    worker.postMessage({ nearfar: "ping", connection } satisfies Greeting, [port2]);
  }, PING_MS);
  over.addEventListener("abort", () => {
    clearInterval(timer);
  });
}

// The page's connection to a worker: it reports a script that fails to start, and ends when the worker ends.

import { WorkerError } from "../errors.js";
import { hold, whenGone } from "./liveness.js";
import { Remote } from "./remote.js";
import type { Greeting } from "./wire.js";

/** A Worker, or a service worker: the ``active`` one of a registration. */
export interface WorkerLike {
  postMessage(message: unknown, transfer: Transferable[]): void;
  addEventListener(type: string, listener: (event: Event) => void, options?: { readonly signal: AbortSignal }): void;
}

export interface ConnectionOptions {
  /** The requirement for the worker's script, for the error of a script that fails. */
  readonly script: string;
  /** Handlers for a worker that is gone, and for one that was restarted. */
  readonly gone: string;
  readonly restarted: string;
  readonly pingMs: number;
  /** Called with the number of pings in a row that the worker has not answered. */
  readonly onMissed?: ((count: number) => void) | undefined;
}

export interface Connection {
  readonly remote: Remote;
  /** Aborts when the connection is over. */
  readonly over: AbortSignal;
  /** Resolves when the worker's script answers. Throws WorkerError, or the signal's reason. */
  readonly hello: (signal?: AbortSignal) => Promise<void>;
  /** From now on an uncaught error in the worker does not end the connection. */
  readonly started: () => void;
  /** Ends the connection. Calls that are under way, and later ones, throw WorkerError with ``message``. */
  readonly disconnect: (message: string) => void;
}

/** A worker that compiles kernels or loads a model may answer late, so several pings may be missed. */
const MAX_MISSED = 6;

/** Connect to a worker whose script serves connections; `hello` shows whether it does. */
export async function connectWorker(
  worker: WorkerLike,
  { script, gone, restarted, pingMs, onMissed = () => undefined }: ConnectionOptions,
): Promise<Connection> {
  const connection = crypto.randomUUID();
  const { port1, port2 } = new MessageChannel();
  const remote = new Remote(port1);
  const over = new AbortController();
  const { signal } = over;
  const fail = (message: string): void => {
    over.abort();
    remote.close(new WorkerError(message));
  };
  const onGone = (): void => {
    fail(`The worker is gone; ${gone}`);
  };
  let isStarted = false;
  worker.addEventListener(
    "error",
    (event) => {
      // Once the script runs, an uncaught error does not have to end the worker.
      if (!isStarted)
        fail(
          `The worker's script failed${"message" in event ? `: ${String(event.message)}` : ""}; ` +
            `see the console, and whether it ${script}`,
        );
    },
    { signal },
  );
  port1.addEventListener("close", onGone);
  await hold(connection, "page", signal);
  worker.postMessage({ nearfar: "connect", connection } satisfies Greeting, [port2]);
  // Without locks, only missing answers show that a worker is gone. Pings also keep a service worker from being
  // stopped.
  let missed = 0;
  const timer = setInterval(() => {
    if (missed === MAX_MISSED) {
      fail(`The worker has not answered for ${(pingMs * MAX_MISSED) / 1000} seconds; ${gone}`);
      return;
    }
    onMissed(missed++);
    const { port1: reply, port2: sent } = new MessageChannel();
    reply.onmessage = ({ data }: MessageEvent<boolean>) => {
      missed = 0;
      onMissed(missed);
      reply.close();
      if (!data) fail(`The worker was restarted; ${restarted}`);
    };
    worker.postMessage({ nearfar: "ping", connection } satisfies Greeting, [sent]);
  }, pingMs);
  signal.addEventListener("abort", () => {
    clearInterval(timer);
  });
  return {
    remote,
    over: signal,
    hello: async (until) => {
      await remote.call(["hello"], [{ signal: until }]);
      whenGone(connection, "worker", signal, onGone);
    },
    started: () => {
      isStarted = true;
    },
    disconnect: (message) => {
      // Not every browser tells the worker that the port was closed.
      remote.call(["disconnect"], []).catch(() => undefined);
      fail(message);
    },
  };
}

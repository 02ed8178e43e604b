// The page's connection to a handler in a worker or a service worker. It ends when the worker ends.

import { WorkerError } from "../errors.js";
import type { WorkerLike } from "../worker/connect_engine.js";
import { hold, whenGone } from "../worker/liveness.js";
import { Remote } from "../worker/remote.js";
import type { Greeting } from "../worker/wire.js";

export interface Connection {
  readonly remote: Remote;
  /** Aborts when the connection ends. */
  readonly over: AbortSignal;
  /** Ends the connection and fails the pending calls. */
  close(): void;
}

/** A worker that loads a model may respond late, so it may miss several heartbeats. */
const MAX_MISSED = 6;

/**
 * ``onMissed`` receives the number of consecutive heartbeats without an answer. Throws WorkerError if the worker does
 * not start or does not answer.
 */
export async function connectHandler(
  worker: WorkerLike,
  heartbeatMs: number,
  onMissed: (count: number) => void = () => undefined,
): Promise<Connection> {
  const connection = crypto.randomUUID();
  const { port1, port2 } = new MessageChannel();
  const remote = new Remote(port1);
  const over = new AbortController();
  const fail = (message: string): void => {
    over.abort();
    remote.close(new WorkerError(message));
  };
  const gone = (): void => {
    fail("The worker is gone; the next call connects again");
  };
  let isConnected = false;
  worker.addEventListener(
    "error",
    (event) => {
      // An uncaught error of a script that runs already need not end it.
      if (!isConnected)
        fail(
          `The worker's script failed${"message" in event ? `: ${String(event.message)}` : ""}; ` +
            "see the console, and check that it makes a handler",
        );
    },
    { signal: over.signal },
  );
  port1.addEventListener("close", gone);
  await hold(connection, "page", over.signal);
  worker.postMessage({ nearfar: "connect", connection } satisfies Greeting, [port2]);
  let missed = 0;
  const timer = setInterval(() => {
    if (missed === MAX_MISSED) {
      fail(
        `The worker has not answered for ${(heartbeatMs * MAX_MISSED) / 1000} seconds; the next call connects again`,
      );
      return;
    }
    onMissed(missed++);
    const { port1: reply, port2: sent } = new MessageChannel();
    reply.onmessage = ({ data }: MessageEvent<boolean>) => {
      missed = 0;
      onMissed(missed);
      reply.close();
      if (!data) fail("The worker was restarted; the next call connects again");
    };
    worker.postMessage({ nearfar: "ping", connection } satisfies Greeting, [sent]);
  }, heartbeatMs);
  over.signal.addEventListener("abort", () => {
    clearInterval(timer);
  });
  await remote.call(["hello"], []);
  isConnected = true;
  whenGone(connection, "worker", over.signal, gone);
  const close = (): void => {
    // Not every browser reports a closed port to the other side.
    remote.call(["disconnect"], []).catch(() => undefined);
    fail("The models were unloaded");
  };
  return { remote, over: over.signal, close };
}

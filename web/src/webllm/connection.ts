// The page's connection to a handler in a worker or a service worker. It ends when the worker ends.

import type { WorkerLike } from "../worker/connect_engine.js";
import { connectWorker } from "../worker/connection.js";
import type { Remote } from "../worker/remote.js";

export interface Connection {
  readonly remote: Remote;
  /** Aborts when the connection ends. */
  readonly over: AbortSignal;
  /** Ends the connection and fails the pending calls. */
  close(): void;
}

/**
 * ``onMissed`` receives the number of consecutive heartbeats without an answer. Throws WorkerError if the worker does
 * not start or does not answer.
 */
export async function connectHandler(
  worker: WorkerLike,
  heartbeatMs: number,
  onMissed?: (count: number) => void,
): Promise<Connection> {
  const again = "the next call connects again";
  const { remote, over, hello, started, disconnect } = await connectWorker(worker, {
    script: "makes a handler",
    gone: again,
    restarted: again,
    pingMs: heartbeatMs,
    onMissed,
  });
  await hello();
  started();
  const close = (): void => {
    disconnect("The models were unloaded");
  };
  return { remote, over, close };
}

// A worker in this thread: its scope is the other end of a channel.

import type { WorkerLike } from "../../src/worker/connect_engine.js";
import type { ServeOptions } from "../../src/worker/serve_engine.js";
import { serveEngine } from "../../src/worker/serve_engine.js";
import type { LoadEngine } from "../../src/worker/shared_engines.js";

export interface FakeWorker extends WorkerLike {
  /** No more messages are sent or received, and no event reports this. */
  terminate(): void;
}

export function fakeWorker(given: LoadEngine | ServeOptions): FakeWorker {
  const { port1, port2 } = new MessageChannel();
  serveEngine(port2, given);
  port2.start();
  // An unused channel must not keep Node running.
  for (const port of [port1, port2]) (port as unknown as { unref(): void }).unref();
  return {
    postMessage: (message, transfer) => {
      port1.postMessage(message, transfer);
    },
    addEventListener: () => undefined,
    terminate: () => {
      port2.close();
    },
  };
}

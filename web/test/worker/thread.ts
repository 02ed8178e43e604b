// The script of a worker in Node: it serves an engine that ends the process on the prompt "die".

import { parentPort } from "node:worker_threads";

import type { WorkerScope } from "../../src/worker/serve_engine.js";
import { serveEngine } from "../../src/worker/serve_engine.js";
import { fakeEngine, fakeModel } from "../api/fake_model.js";

serveEngine(parentPort as unknown as WorkerScope, () => {
  const { model } = fakeModel("from a thread");
  const engine = fakeEngine(model);
  return Promise.resolve({
    ...engine,
    countTokens: (prompt, options) => (prompt === "die" ? process.exit(1) : engine.countTokens(prompt, options)),
  });
});

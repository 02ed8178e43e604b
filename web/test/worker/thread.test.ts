// A worker in a separate thread, in Node.

import { Worker } from "node:worker_threads";

import { build } from "esbuild";
import { expect, test } from "vitest";

import type { WorkerLike } from "../../src/worker/connect_engine.js";
import { connectEngine } from "../../src/worker/connect_engine.js";

test("an engine in another thread answers, and calls that wait for it fail when the thread dies", async () => {
  const { outputFiles } = await build({
    entryPoints: [`${import.meta.dirname}/thread.ts`],
    bundle: true,
    format: "esm",
    platform: "node",
    write: false,
    external: ["*/grammar/index.js"],
  });
  const worker = new Worker(
    new URL(`data:text/javascript;base64,${Buffer.from(outputFiles[0]?.contents ?? []).toString("base64")}`),
  );
  const address: WorkerLike = {
    postMessage: (message, transfer) => {
      worker.postMessage(message, transfer as unknown as Parameters<Worker["postMessage"]>[1]);
    },
    addEventListener: (type, listener) => {
      worker.on(type, listener);
    },
  };
  const engine = await connectEngine(address, "https://example.org/");
  let text = "";
  const stream = await engine.chat.completions.create({ messages: [{ role: "user", content: "x" }], stream: true });
  for await (const { choices } of stream) text += choices[0]?.delta.content ?? "";
  expect(text).toBe("from a thread");
  const dying = engine.countTokens("die");
  await expect(dying).rejects.toMatchObject({
    name: "WorkerError",
    message: "The worker is gone; start it again and connect again",
  });
});

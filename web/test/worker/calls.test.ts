import { createContext, runInContext } from "node:vm";

import { build } from "esbuild";
import { expect, test } from "vitest";

test("errors, streams and aborts over a custom port work in JavaScript engines outside of browsers", async () => {
  const contents = `
    import { Remote, RequestError, serve } from "./src/worker/calls.js";
    const ports = [0, 1].map(() => ({ listeners: [], start() {}, close() {}, addEventListener(_, listener) { this.listeners.push(listener); } }));
    ports.forEach((port, i) => (port.postMessage = (data) => Promise.resolve().then(() => ports[1 - i].listeners.forEach((listener) => listener({ data })))));
    const target = {
      refuse() { throw new RequestError("no", { param: "x" }); },
      async *count(signal) { for (let i = 0; ; i++) { signal.throwIfAborted(); yield i; } },
    };
    globalThis.found = (async () => {
      serve(ports[0], target);
      const remote = new Remote(ports[1]);
      const refused = await remote.call(["refuse"], []).catch((error) => [error instanceof RequestError, error.details.param]);
      const controller = new AbortController();
      const numbers = [];
      const aborted = await (async () => {
        for await (const number of await remote.call(["count"], [controller.signal])) if (numbers.push(number) === 3) controller.abort(new Error("enough"));
      })().catch(({ message }) => message);
      return [refused, numbers, aborted];
    })();`;
  const { outputFiles } = await build({
    stdin: { contents, resolveDir: "." },
    bundle: true,
    write: false,
    format: "iife",
    target: "es2022",
  });
  const bare = createContext({ AbortController, AbortSignal }) as { found?: Promise<unknown> };
  runInContext(outputFiles[0]?.text ?? "", bare);
  expect(await bare.found).toEqual([[true, "x"], [0, 1, 2], "enough"]);
});

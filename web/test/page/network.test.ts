import { afterEach, expect, test, vi } from "vitest";

import { Network } from "../../page/network.js";

afterEach(() => {
  vi.unstubAllGlobals();
});

test("a network that is switched off aborts running requests, sends none, and can be switched on again", async () => {
  const reached: string[] = [];
  vi.stubGlobal("fetch", (request: Request, { signal }: { signal: AbortSignal }) => {
    reached.push(request.url);
    const body = new ReadableStream({
      start: (controller) => {
        signal.addEventListener("abort", () => {
          controller.error(signal.reason);
        });
      },
    });
    return Promise.resolve(new Response(body));
  });
  const network = new Network();
  const { body } = await network.fetch("http://far.test/v1/chat/completions", { method: "POST", body: '{"é":1}' });
  network.switch(false);
  await expect(body?.getReader().read()).rejects.toThrow(TypeError);
  await expect(network.fetch("http://far.test/v1/models")).rejects.toThrow(TypeError);
  network.switch(true);
  await network.fetch("http://far.test/v1/models");
  expect(reached).toEqual(["http://far.test/v1/chat/completions", "http://far.test/v1/models"]);
  expect(network.sent).toEqual([
    { method: "POST", path: "/v1/chat/completions", bytes: 8 },
    { method: "GET", path: "/v1/models", bytes: 0 },
  ]);
});

// Pages and a handler in one thread, connected by channels as a page and a worker are.

import { afterEach, expect, test, vi } from "vitest";

import type { WorkerLike } from "../../src/worker/connect_engine.js";
import type { InitProgressReport, LogitProcessor } from "../../src/webllm/index.js";
import {
  ExtensionServiceWorkerMLCEngine,
  ExtensionServiceWorkerMLCEngineHandler,
  MLCEngine,
  ServiceWorkerMLCEngine,
  ServiceWorkerMLCEngineHandler,
  WebWorkerMLCEngine,
  WebWorkerMLCEngineHandler,
} from "../../src/webllm/index.js";
import { Engine } from "../../src/engine.js";
import { grammar } from "../../src/grammar/index.js";
import type { FakeLoad } from "./fake_load.js";
import { fakeLoad } from "./fake_load.js";
import { fakeExtension } from "./fake_extension.js";

const messages = [{ role: "user" as const, content: "hi" }];

afterEach(() => {
  vi.unstubAllGlobals();
  vi.restoreAllMocks();
});

interface Worker extends WorkerLike {
  /** Starts the script again, without any connections. */
  restart(): void;
}

/** A worker whose script creates a handler and exports its onmessage function. */
function workerOf(fake: FakeLoad): Worker {
  const start = () =>
    new WebWorkerMLCEngineHandler(new MLCEngine({}, fake.load)) as { onmessage: (event: MessageEvent) => void };
  let { onmessage } = start();
  const { port1, port2 } = new MessageChannel();
  port2.onmessage = (event: MessageEvent) => {
    onmessage(event);
  };
  for (const port of [port1, port2]) (port as unknown as { unref(): void }).unref();
  return {
    postMessage: (message, transfer) => {
      port1.postMessage(message, transfer);
    },
    addEventListener: () => undefined,
    restart: () => {
      ({ onmessage } = start());
    },
  };
}

async function answer(
  engine: WebWorkerMLCEngine | ServiceWorkerMLCEngine | ExtensionServiceWorkerMLCEngine,
): Promise<string> {
  let text = "";
  for await (const chunk of await engine.chat.completions.create({ messages, stream: true }))
    text += chunk.choices[0]?.delta.content ?? "";
  return text;
}

test("an engine in a worker does the same as one on the page", async () => {
  const fake = fakeLoad("hello");
  const reports: InitProgressReport[] = [];
  const appConfig = { model_list: [{ model_id: "tiny", model: "/tiny/" }] };
  const engine = new WebWorkerMLCEngine(workerOf(fake), {
    appConfig,
    initProgressCallback: (report) => reports.push(report),
  });
  await engine.reload("tiny", { temperature: 0.5 });
  expect([fake.loaded, reports.at(-1)?.text]).toEqual([["/tiny/"], "Finish loading tiny on a GPU"]);
  expect(await answer(engine)).toBe("hello");
  const { choices, usage } = await engine.chat.completions.create({ messages });
  expect([choices[0]?.message.content, usage?.completion_tokens, await engine.getMessage()]).toEqual([
    "hello",
    5,
    "hello",
  ]);
  expect(fake.source("/tiny/").requests[0]?.sampling?.temperature).toBe(0.5);
  expect((await engine.completions.create({ prompt: "x" })).choices[0]?.text).toBe("hello");
  expect(await engine.runtimeStatsText()).toContain("tokens/sec");
  await engine.resetChat();
  expect(await engine.getMessage("tiny")).toBe("");
  await expect(engine.chat.completions.create({ messages, model: "big" })).rejects.toMatchObject({
    code: "request_error",
    details: { param: "model" },
  });
  await expect(engine.embeddings.create({ input: "a" })).rejects.toThrow("makes no embeddings");
  await engine.unload();
  expect(fake.destroyed).toEqual(["/tiny/"]);
  await expect(answer(engine)).rejects.toThrow("No model is loaded");
});

test("unload ends a load in a worker, which resolves without a model", async () => {
  const fake = fakeLoad("hello");
  const load: FakeLoad["load"] = (_, { signal }) =>
    new Promise((_resolve, reject) => {
      started();
      signal?.addEventListener("abort", () => {
        reject(signal.reason as Error);
      });
    });
  let started = (): void => undefined;
  const isLoading = new Promise<void>((resolve) => (started = resolve));
  const engine = new WebWorkerMLCEngine(workerOf({ ...fake, load }));
  const loading = engine.reload("/a/");
  await isLoading;
  await engine.unload();
  await loading;
  await expect(answer(engine)).rejects.toThrow("No model is loaded");
});

test("simultaneous calls share one connection", async () => {
  const worker = workerOf(fakeLoad("hello"));
  const posted = vi.spyOn(worker, "postMessage");
  const engine = new WebWorkerMLCEngine(worker);
  await expect(Promise.all([engine.getMessage(), engine.runtimeStatsText()])).rejects.toThrow("No model is loaded");
  expect(posted).toHaveBeenCalledOnce();
  await engine.unload();
});

test("a logit processor on the page is an error if the engine is in a worker", () => {
  const config = { logitProcessorRegistry: new Map() };
  const message = "engineConfig.logitProcessorRegistry works on logits in the worker";
  expect(() => new WebWorkerMLCEngine(workerOf(fakeLoad("hello")), config)).toThrow(message);
});

test("interruptGenerate reaches the worker", async () => {
  const engine = new WebWorkerMLCEngine(workerOf(fakeLoad("a".repeat(1000))));
  await engine.reload("/x/");
  let reason: unknown;
  for await (const { choices } of await engine.chat.completions.create({ messages, stream: true })) {
    engine.interruptGenerate();
    reason = choices[0]?.finish_reason ?? reason;
  }
  expect(reason).toBe("abort");
  await engine.unload();
});

test("a handler uses the logit processors of its worker", async () => {
  const fake = fakeLoad("ab");
  const handler = new WebWorkerMLCEngineHandler(new MLCEngine({}, fake.load));
  const sampled: number[] = [];
  const processor: LogitProcessor = {
    processLogits: (logits) => logits,
    processSampledToken: (token) => sampled.push(token),
    resetState: () => undefined,
  };
  handler.setLogitProcessorRegistry(new Map([["/x/", processor]]));
  const { port1, port2 } = new MessageChannel();
  port2.onmessage = (event: MessageEvent) => {
    handler.onmessage(event);
  };
  for (const port of [port1, port2]) (port as unknown as { unref(): void }).unref();
  const engine = new WebWorkerMLCEngine({
    postMessage: port1.postMessage.bind(port1),
    addEventListener: () => undefined,
  });
  await engine.reload("/x/");
  expect([await answer(engine), sampled]).toEqual(["ab", [97, 98]]);
  await engine.unload();
});

test("a worker that was restarted loads the models again at the next call", async () => {
  vi.useFakeTimers({ toFake: ["setInterval", "clearInterval"] });
  const fake = fakeLoad("hello");
  const worker = workerOf(fake);
  const engine = new WebWorkerMLCEngine(worker);
  await engine.reload("/x/");
  worker.restart();
  vi.advanceTimersByTime(5_000);
  await new Promise((resolve) => setTimeout(resolve, 20));
  vi.useRealTimers();
  expect(await answer(engine)).toBe("hello");
  expect(fake.loaded).toEqual(["/x/", "/x/"]);
  await engine.unload();
});

/** A service worker's scope and the page's navigator, whose messages go over a channel. */
function serviceWorker(fake: FakeLoad): void {
  const { port1, port2 } = new MessageChannel();
  new ServiceWorkerMLCEngineHandler(new MLCEngine({}, fake.load), port2);
  port2.start();
  for (const port of [port1, port2]) (port as unknown as { unref(): void }).unref();
  const active = { postMessage: port1.postMessage.bind(port1), addEventListener: () => undefined };
  vi.stubGlobal("navigator", { serviceWorker: { ready: Promise.resolve({ active }) } });
}

test("pages share the models of a service worker, which loads a page's models again when it needs them", async () => {
  const fake = fakeLoad("hello");
  serviceWorker(fake);
  const reports: string[] = [];
  const [first, second] = [
    new ServiceWorkerMLCEngine(),
    new ServiceWorkerMLCEngine({ initProgressCallback: ({ text }) => reports.push(text) }),
  ];
  await first.reload("/x/");
  await second.reload("/x/");
  expect([fake.loaded, reports]).toEqual([["/x/"], ["Already loaded /x/"]]);
  await second.reload("/y/");
  expect([await answer(first), await answer(second), fake.loaded]).toEqual([
    "hello",
    "hello",
    ["/x/", "/y/", "/x/", "/y/"],
  ]);
  expect(first.missedHeartbeat).toBe(0);
  await first.unload();
  await second.unload();
});

test("a page without service workers gets a WorkerError with the reason", async () => {
  vi.stubGlobal("navigator", {});
  await expect(new ServiceWorkerMLCEngine().reload("/x/")).rejects.toMatchObject({
    code: "worker_error",
    message: expect.stringContaining("https or from localhost") as string,
  });
});

test("an engine in an extension's service worker loads its models again after the worker was stopped", async () => {
  const fake = fakeLoad("hello");
  vi.spyOn(Engine, "load").mockImplementation(fake.load as never);
  const { onConnect, disconnect } = fakeExtension();
  let handler: ExtensionServiceWorkerMLCEngineHandler | undefined;
  onConnect.addListener((port) => {
    if (handler === undefined) handler = new ExtensionServiceWorkerMLCEngineHandler(port);
    else handler.setPort(port);
    port.onMessage.addListener((message) => handler?.onmessage(message, port));
  });
  let disconnected = 0;
  const engine = new ExtensionServiceWorkerMLCEngine({ onDisconnect: () => disconnected++ });
  await engine.reload("/x/");
  expect([await answer(engine), await engine.getMessage()]).toEqual(["hello", "hello"]);
  await expect(engine.getMessage("/y/")).rejects.toHaveProperty("code", "request_error");
  disconnect();
  handler = undefined;
  expect([await answer(engine), disconnected, fake.loaded]).toEqual(["hello", 1, ["/x/", "/x/"]]);
  await engine.unload();
});

test.each<[string, (scope: MessagePort) => { readonly engine: MLCEngine }]>([
  ["a worker", () => new WebWorkerMLCEngineHandler({ grammar })],
  ["a service worker", (scope) => new ServiceWorkerMLCEngineHandler({ grammar }, scope)],
  [
    "an extension",
    () => {
      const { onConnect } = fakeExtension();
      let handler: ExtensionServiceWorkerMLCEngineHandler | undefined;
      onConnect.addListener((port) => (handler = new ExtensionServiceWorkerMLCEngineHandler(port, { grammar })));
      (globalThis as unknown as { chrome: { runtime: { connect(): void } } }).chrome.runtime.connect();
      return handler ?? expect.fail();
    },
  ],
])("a handler in %s passes the grammar compiler on to Engine.load", async (_, makeHandler) => {
  const load = vi.spyOn(Engine, "load").mockImplementation(fakeLoad("a").load as never);
  const { engine } = makeHandler(new MessageChannel().port1);
  await engine.reload("/x/");
  expect(load).toHaveBeenCalledWith("/x/", expect.objectContaining({ grammar }));
});

test("an extension's engine outside of an extension gets an error with the reason", async () => {
  await expect(new ExtensionServiceWorkerMLCEngine().reload("/x/")).rejects.toThrow("This page has no chrome.runtime");
});

import { BundleError, DeviceError, WorkerError } from "@nearfar/web/calls";
import { expect, test } from "vitest";

import type { EngineHost } from "../src/engine_host.js";
import type { WebView } from "../src/connect_web_view.js";
import { connectWebView } from "../src/connect_web_view.js";
import { serveApp } from "../src/serve_app.js";
import type { Ends, Log } from "./fakes.js";
import { SUPPORTED, fakeHost, lastOfPage, pause, until, webViewEnds } from "./fakes.js";

const BUNDLE = "https://app.example/bundle/";

interface Bridge {
  readonly view: WebView;
  readonly host: EngineHost;
  readonly log: Log;
  readonly ends: Ends;
}

async function bridge(...[load]: Parameters<typeof fakeHost>): Promise<Bridge> {
  const ends = webViewEnds();
  const { host, log } = fakeHost(load);
  serveApp(host, ends.page, SUPPORTED);
  return { view: await connectWebView(ends.app), host, log, ends };
}

const numbers = async (view: WebView, count: number, signal?: AbortSignal): Promise<number[]> => {
  const engine = await view.load(BUNDLE);
  const found: number[] = [];
  const stream = await engine.chat.completions.create({ messages: [], stream: true }, { signal });
  for await (const chunk of stream as unknown as AsyncIterable<{ readonly n: number }>)
    if (found.push(chunk.n) === count) break;
  return found;
};

test("an app loads with progress, streams, counts tokens and receives embeddings, all as JSON", async () => {
  const { view, ends, host } = await bridge();
  const phases: string[] = [];
  const engine = await view.load(BUNDLE, { store: false, onProgress: ({ phase }) => phases.push(phase) });
  expect([view.problem, engine.info.model, phases]).toEqual([null, BUNDLE, ["download", "ready"]]);
  expect(await engine.countTokens("abcd")).toBe(4);
  expect(await engine.embeddings.create({ input: "x" })).toEqual({ vector: Float32Array.of(0.5, -2) });
  expect(await numbers(view, 3)).toEqual([0, 1, 2]);
  const { value } = await engine.generate("x").next();
  expect(value).toEqual({ n: 0 });
  expect(await view.memory()).toMatchObject({ state: "ready", totalBytes: 100 });
  await view.pause();
  expect(host.memory().paused).toBe(true);
  await view.resume();
  expect(await view.lowMemory()).toEqual({ freedBytes: 100 });
  await view.destroy();
  expect(host.memory().state).toBe("empty");
  for (const text of [...ends.sent.app, ...ends.sent.page]) expect(JSON.parse(text)).toMatchObject({ nearfar: 1 });
});

test("typed errors cross the bridge, with their fields", async () => {
  const { view } = await bridge(() =>
    Promise.reject(new BundleError("no manifest", { file: "manifest.json", status: 404 })),
  );
  const failure: unknown = await view.load(BUNDLE).catch((error: unknown) => error);
  expect(failure).toBeInstanceOf(BundleError);
  expect(failure).toMatchObject({ details: { file: "manifest.json", status: 404 } });
  const { view: other } = await bridge();
  const engine = await other.load(BUNDLE);
  await expect(engine.countTokens("bad")).rejects.toBeInstanceOf(RangeError);
  await expect(engine.countTokens([{ role: "user", content: new Map() }] as never)).rejects.toMatchObject({
    code: "request_error",
    message: expect.stringContaining("message.args[0][0].content: a Map") as string,
  });
});

test("leaving a loop and aborting a signal end the generation in the web view", async () => {
  const { view, log } = await bridge();
  await numbers(view, 3);
  await until(() => {
    expect(log.running).toBe(0);
  });
  const controller = new AbortController();
  setTimeout(() => {
    controller.abort(new TypeError("enough"));
  }, 20);
  await expect(numbers(view, Infinity, controller.signal)).rejects.toThrow("enough");
  await until(() => {
    expect(log.running).toBe(0);
  });
});

test("a page runs at most 32 items ahead of an app that does not read", async () => {
  const { view, log } = await bridge();
  const engine = await view.load(BUNDLE);
  const stream = (await engine.chat.completions.create({
    messages: [],
    stream: true,
  })) as unknown as AsyncIterable<unknown>;
  const iterator = stream[Symbol.asyncIterator]();
  await iterator.next();
  await until(() => {
    expect(log.made).toBeGreaterThan(30);
  });
  await pause(50);
  // The worker has its own window.
  expect(log.made).toBeLessThanOrEqual(2 * 32 + 2);
  await iterator.return?.();
});

test("after a reload of the page, running calls fail, and the app connects again", async () => {
  const { view, ends, log } = await bridge();
  const counting = numbers(view, Infinity);
  await until(() => {
    expect(log.running).toBe(1);
  });
  const { host } = fakeHost();
  serveApp(host, ends.reload(), SUPPORTED);
  await expect(counting).rejects.toBeInstanceOf(WorkerError);
  expect((await view.closed).message).toContain("was reloaded");
  await expect(view.memory()).rejects.toThrow("was reloaded");
  const again = await connectWebView(ends.app);
  expect(await again.memory()).toMatchObject({ state: "empty" });
});

test("after a restart of the app, its earlier calls end, and the model is still loaded", async () => {
  const { view, ends, log } = await bridge();
  const counting = numbers(view, Infinity);
  counting.catch(() => undefined);
  await until(() => {
    expect(log.running).toBe(1);
  });
  const again = await connectWebView(ends.app);
  await until(() => {
    expect(log.running).toBe(0);
  });
  expect((await again.memory()).state).toBe("ready");
  await expect(view.memory()).rejects.toThrow("send hello");
});

test("an app that starts before its page sends hello again when the page is loaded", async () => {
  const ends = webViewEnds();
  const connecting = connectWebView(ends.app);
  await pause();
  serveApp(fakeHost().host, ends.page, SUPPORTED);
  expect(await (await connecting).memory()).toMatchObject({ state: "empty" });
});

test("a page that does not answer and a closed connection are a WorkerError", async () => {
  await expect(connectWebView(webViewEnds().app, { timeoutMs: 20 })).rejects.toMatchObject({
    code: "worker_error",
    message: expect.stringContaining("not answered for 0.02 seconds") as string,
  });
  const { view } = await bridge();
  view.close();
  await expect(view.memory()).rejects.toBeInstanceOf(WorkerError);
});

test("sides with different protocols refuse each other with a message", async () => {
  const { ends } = await bridge();
  ends.app.send(JSON.stringify({ nearfar: 2, type: "hello", app: "later" }));
  await lastOfPage(ends, {
    nearfar: 1,
    type: "refused",
    app: "later",
    error: { code: "worker_error", details: { app: 2, page: 1 } },
  });
  const later = webViewEnds();
  later.page.listen(() => {
    later.page.send(JSON.stringify({ nearfar: 2, type: "hello", session: "s", app: null, problem: null }));
  });
  await expect(connectWebView(later.app)).rejects.toThrow("The page uses protocol 2 of the bridge, the app 1");
});

test("the page's hello reports what the web view lacks", async () => {
  const ends = webViewEnds();
  serveApp(fakeHost().host, ends.page, { navigator: { userAgent: "iPhone" } });
  const { problem } = await connectWebView(ends.app);
  expect(problem).toBeInstanceOf(DeviceError);
  expect(problem).toMatchObject({ details: { missing: "navigator.gpu", needs: "iOS 26 or later" } });
});

test.each([
  [{ type: "hello" }, "'s app is not"],
  [{ type: "goodbye", app: "a" }, "'s type is not 'hello' or 'message'"],
  [{ type: "message", app: "a" }, "'s session is not"],
  [{ type: "message", app: "a", session: "s", message: { type: "call" } }, "'s message.id is not an integer"],
  [{ type: "message", app: "a", session: "s", message: { type: "shout", id: 1 } }, "'s message.type is not"],
  [
    { type: "message", app: "a", session: "s", message: { type: "call", id: 1, path: "load", args: [] } },
    "'s message is not a valid 'call' message",
  ],
  [{ type: "message", app: "a", session: "s", message: { type: "leave", id: 1 } }, "send hello"],
])("the frame %j is refused in words", async (frame, words) => {
  const { ends } = await bridge();
  ends.app.send(JSON.stringify({ nearfar: 1, ...frame }));
  await lastOfPage(ends, { type: "refused", error: { message: expect.stringContaining(words) as string } });
});

test("other texts on the same channel are ignored", async () => {
  const { ends } = await bridge();
  const before = ends.sent.page.length;
  for (const text of ["hello", "{", "[1]", '{"type":"hello","app":"a"}']) ends.app.send(text);
  await pause();
  expect(ends.sent.page.length).toBe(before);
});

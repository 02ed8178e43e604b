import type { EngineApi } from "@nearfar/web";
import { DeviceError } from "@nearfar/web";
import { afterEach, expect, test, vi } from "vitest";

import { fakeHost, pause, until } from "./fakes.js";

const BUNDLE = "https://app.example/bundle/";
const OTHER = "https://app.example/other/";

afterEach(() => {
  vi.useRealTimers();
});

test("requests before a load fail, and memory reports the state", async () => {
  const { host } = fakeHost();
  await expect(host.engine.countTokens("abc")).rejects.toMatchObject({
    code: "request_error",
    message: expect.stringContaining("call load first") as string,
  });
  expect(() => host.engine.info).toThrow("call load first");
  expect(host.memory()).toMatchObject({ state: "empty", bundle: null, totalBytes: 0 });
  const loading = host.load(BUNDLE);
  expect(host.memory()).toMatchObject({ state: "loading", place: null });
  expect(await loading).toMatchObject({ model: BUNDLE });
  expect(host.memory()).toEqual({
    state: "ready",
    paused: false,
    place: "worker",
    bundle: BUNDLE,
    weightBytes: 70,
    stateBytes: 20,
    totalBytes: 100,
  });
  expect(await host.engine.countTokens("abc")).toBe(3);
  host.destroy();
});

test("lowMemory frees the engine and its worker at once, and the next requests load it again once", async () => {
  const { host, log } = fakeHost();
  expect(host.lowMemory()).toEqual({ freedBytes: 0 });
  await host.load(BUNDLE);
  const stream = await host.engine.chat.completions.create({ messages: [], stream: true });
  const reading = (async () => {
    for await (const chunk of stream) expect(chunk).toBeDefined();
  })();
  await until(() => {
    expect(log.running).toBe(1);
  });
  expect(host.lowMemory()).toEqual({ freedBytes: 100 });
  await expect(reading).rejects.toMatchObject({ code: "worker_error" });
  expect([host.memory().state, log.terminated]).toEqual(["freed", 1]);
  await until(() => {
    expect([log.destroyed, log.running]).toEqual([1, 0]);
  });
  expect(await Promise.all([host.engine.countTokens("ab"), host.engine.countTokens("abc")])).toEqual([2, 3]);
  expect(log.loads).toEqual([BUNDLE, BUNDLE]);
  host.destroy();
});

test("an engine whose worker has died is freed, and the next request loads it again", async () => {
  const { host, log } = fakeHost();
  await host.load(BUNDLE);
  await expect(host.engine.countTokens("die")).rejects.toMatchObject({ code: "worker_error" });
  expect([host.memory().state, log.terminated]).toEqual(["freed", 1]);
  expect(await host.engine.countTokens("abc")).toBe(3);
  host.destroy();
});

test("pause reaches the engine, also one that is loading, and a freed engine is not loaded before resume", async () => {
  const { host, log } = fakeHost();
  const loading = host.load(BUNDLE);
  await host.pause();
  await loading;
  expect([log.calls, host.memory().paused]).toEqual([["pause"], true]);
  host.lowMemory();
  const counted = Promise.all([host.engine.countTokens("abc"), host.engine.countTokens("ab")]);
  await pause(20);
  expect(log.loads).toEqual([BUNDLE]);
  await host.resume();
  expect([await counted, log.loads]).toEqual([
    [3, 2],
    [BUNDLE, BUNDLE],
  ]);
  expect(host.memory().paused).toBe(false);
  await host.engine.pause();
  await host.engine.resume();
  expect(log.calls.slice(1)).toEqual(["pause", "resume"]);
  host.destroy();
});

test("loading another bundle replaces the first one and aborts its load", async () => {
  const { host, log } = fakeHost();
  await host.load(BUNDLE);
  const overtaken = host.load(BUNDLE);
  overtaken.catch(() => undefined);
  expect(await host.load(OTHER)).toMatchObject({ model: OTHER });
  await expect(overtaken).rejects.toMatchObject({ name: "AbortError" });
  await until(() => {
    expect([host.memory().bundle, log.destroyed]).toEqual([OTHER, 1]);
  });
  const controller = new AbortController();
  const aborted = host.load(BUNDLE, { signal: controller.signal });
  await pause(1);
  controller.abort(new TypeError("enough"));
  await expect(aborted).rejects.toThrow("enough");
  expect(host.memory().state).toBe("empty");
});

test("a load that fails leaves nothing to load again", async () => {
  const { host } = fakeHost(() => Promise.reject(new DeviceError("no", { missing: "shader-f16" })));
  await expect(host.load(BUNDLE)).rejects.toMatchObject({ code: "device_error" });
  expect(host.memory()).toMatchObject({ state: "empty", bundle: null });
});

test("if workers have no WebGPU, the engine runs on the page", async () => {
  const noGpu = (): Promise<EngineApi> => Promise.reject(new DeviceError("no WebGPU", { missing: "navigator.gpu" }));
  const { host: poor } = fakeHost(noGpu);
  await expect(poor.load(BUNDLE)).rejects.toMatchObject({ details: { missing: "navigator.gpu" } });
  const freed: string[] = [];
  const here = {
    info: { model: "here", totalBytes: 5 },
    countTokens: () => Promise.resolve(7),
    destroy: () => freed.push("here"),
  };
  const { host, log } = fakeHost(noGpu, { loadHere: () => Promise.resolve(here as unknown as EngineApi) });
  await host.load(BUNDLE);
  expect([host.memory().place, await host.engine.countTokens("x"), log.terminated]).toEqual(["page", 7, 1]);
  host.destroy();
  expect(freed).toEqual(["here"]);
});

test("an unsupported web view is reported before a worker is started", async () => {
  const { host, log } = fakeHost(null, { scope: { navigator: { userAgent: "iPhone" } } });
  await expect(host.load(BUNDLE)).rejects.toMatchObject({
    code: "device_error",
    details: { missing: "navigator.gpu", needs: "iOS 26 or later" },
  });
  expect(log.loads).toEqual([]);
});

test("progress is reported for each phase, but not for each change within a phase", async () => {
  // Time stands still.
  vi.useFakeTimers({ toFake: ["performance"] });
  const phases: string[] = [];
  await fakeHost().host.load(BUNDLE, { onProgress: ({ phase }) => phases.push(phase) });
  expect(phases).toEqual(["download", "ready"]);
});

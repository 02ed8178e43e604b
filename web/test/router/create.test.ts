// Hybrid.create: it reports permanent errors, and ignores temporary ones.

import { beforeEach, expect, test, vi } from "vitest";

import type { EngineApi } from "../../src/api/engine_api.js";
import { BundleError } from "../../src/errors.js";
import type { LoadOptions, LoadProgress } from "../../src/load_options.js";
import type { HybridOptions } from "../../src/router/hybrid.js";
import { Hybrid } from "../../src/router/hybrid.js";
import { FAR, FakeClock, FakeFar, MemoryLedger, near, turns } from "./fakes.js";

const MESSAGES = [{ role: "user" as const, content: "hello" }];
const PROGRESS: LoadProgress = {
  phase: "download",
  loadedBytes: 1,
  storedBytes: 0,
  totalBytes: 2,
  compiledKernels: 0,
  totalKernels: 0,
};

/** The arguments of Engine.load, and its result. */
const loads: {
  readonly bundle: unknown;
  readonly options: LoadOptions;
  resolve(engine: EngineApi): void;
  reject(error: Error): void;
}[] = [];
vi.mock("../../src/index.js", () => ({
  Engine: {
    load: (bundle: unknown, options: LoadOptions) =>
      new Promise<EngineApi>((resolve, reject) => loads.push({ bundle, options, resolve, reject })),
  },
}));
beforeEach(() => {
  loads.length = 0;
});

async function create(far: FakeFar, policy: object, rest: Partial<HybridOptions> = {}): Promise<Hybrid> {
  const device = { read: () => Promise.resolve({ online: true, battery: null, charging: null, thermal: null }) };
  return Hybrid.create({
    near: near({ text: "near by" }).engine,
    far: { baseURL: FAR, apiKey: "right" },
    policy: { version: 1, mode: "prefer-far", ...policy },
    fetch: far.fetch,
    ledger: new MemoryLedger(),
    clock: new FakeClock(),
    device,
    ...rest,
  });
}

test.each([
  ["a key that the policy does not have", {}, { colour: "red" }, {}, { code: "bad_policy" }],
  [
    "continuing with a server that cannot",
    {},
    { escalation: { then: "continue" } },
    { far: { baseURL: FAR, dialect: "openai" as const } },
    { code: "bad_policy", param: "escalation.then" },
  ],
  ["a wrong key", { key: "other" }, {}, {}, { code: "wrong_key", param: "far.apiKey", status: 401 }],
  ["another version of the API", { about: { api_version: 2, models: [] } }, {}, {}, { code: "api_version" }],
  [
    "a model that is not there",
    {},
    {},
    { far: { baseURL: FAR, model: "huge" } },
    { code: "unknown_model", param: "far.model" },
  ],
  [
    "several models and no name",
    { about: { api_version: 1, models: [{ id: "a" }, { id: "b" }] } },
    {},
    {},
    { code: "unknown_model", param: "far.model" },
  ],
  ["an address that is none", {}, {}, { far: { baseURL: "far.test" } }, { param: "far.baseURL" }],
  ["no far side for far-only", {}, { mode: "far-only" }, { far: null }, { code: "bad_policy", param: "mode" }],
  ["nobody at all", {}, {}, { near: null, far: null }, { code: "bad_policy", param: "mode" }],
  ["nobody at all, by leaving both out", {}, {}, { near: undefined, far: undefined }, { param: "mode" }],
  ["an option that there is not", {}, {}, { fallback: "near" }, { param: "fallback" }],
  ["a key under another client's name", {}, {}, { far: { baseURL: FAR, api_key: "right" } }, { param: "api_key" }],
])("%s is an error at creation", async (_, server, policy, rest, details) => {
  await expect(
    create(Object.assign(new FakeFar(), server), policy, rest as Partial<HybridOptions>),
  ).rejects.toMatchObject({ code: "request_error", details });
});

test("the transcriber of a far server is no model to choose from", async () => {
  const models = [
    { id: "whisper", transcribes: true },
    { id: "big", context: 4096, tools: true, sound: true },
  ];
  const far = Object.assign(new FakeFar(), { about: { api_version: 1, models } });
  const nf = await create(far, { mode: "prefer-far" });
  await nf.chat.completions.create({ messages: [{ role: "user", content: "hi" }] });
  expect(far.bodies[0]).toMatchObject({ model: "big" });
  nf.close();
});

test("a missing network is not an error if near may answer, and far is asked later", async () => {
  const far = Object.assign(new FakeFar(), { reachable: false });
  const clock = new FakeClock();
  const nf = await create(far, { retries: 0, breaker: { open_ms: 1000 } }, { clock });
  far.reachable = true;
  expect([nf.far, (await nf.chat.completions.create({ messages: MESSAGES })).route?.reason]).toEqual([
    null,
    "circuit_open",
  ]);
  await clock.pass(1000);
  expect((await nf.chat.completions.create({ messages: MESSAGES })).route).toMatchObject({
    side: "far",
    reason: "prefer",
  });
  expect(nf.far).toEqual({
    id: "big",
    name: "big",
    context: 4096,
    tokenizerSha256: null,
    tools: true,
    verify: false,
    sound: false,
    video: false,
    vision: false,
  });
  await expect(create(Object.assign(new FakeFar(), { reachable: false }), { mode: "far-only" })).rejects.toMatchObject({
    code: "unavailable",
  });
});

test("a far side that reports that it reads images gets them without an option", async () => {
  const about = { api_version: 1, models: [{ id: "big", context: 4096, tools: true, vision: true }] };
  const nf = await create(Object.assign(new FakeFar(), { about }), { mode: "prefer-near" });
  const content = [{ type: "image_url", image_url: { url: "data:," } }] as const;
  const { route } = await nf.chat.completions.create({ messages: [{ role: "user", content: [...content] }] });
  expect(route).toMatchObject({ side: "far", reason: "vision" });
});

test("a far side that reports that it reads videos gets them without an option, also the page's own", async () => {
  const about = { api_version: 1, models: [{ id: "big", context: 4096, tools: true, vision: true, video: true }] };
  const far = Object.assign(new FakeFar(), { about });
  const nf = await create(far, { mode: "prefer-near" });
  const video = new Blob(["film"], { type: "video/mp4" });
  const frames = [new Blob(["frame"], { type: "image/png" })];
  const film = { type: "video_url", video_url: { url: "data:video/mp4;base64,ZmlsbQ==" } };
  const cases = [
    [{ type: "video", video }, film],
    [{ type: "video_url", video_url: { url: URL.createObjectURL(video) } }, film],
    [
      { type: "video", frames, fps: 2 },
      { type: "video", frames: ["data:image/png;base64,ZnJhbWU="], fps: 2 },
    ],
  ] as const;
  for (const [part, sent] of cases) {
    const { route } = await nf.chat.completions.create({ messages: [{ role: "user", content: [part] }] });
    expect(route).toMatchObject({ side: "far", reason: "video" });
    expect(far.bodies.at(-1)?.messages).toEqual([{ role: "user", content: [sent] }]);
  }
});

test("a far side that reads pictures alone gets no videos", async () => {
  const about = { api_version: 1, models: [{ id: "big", context: 4096, tools: true, vision: true }] };
  const nf = await create(Object.assign(new FakeFar(), { about }), { mode: "prefer-near" });
  const content = [{ type: "video_url", video_url: { url: "data:video/mp4;base64,AA==" } }] as const;
  await expect(
    nf.chat.completions.create({ messages: [{ role: "user", content: [...content] }] }),
  ).rejects.toMatchObject({ details: { code: "video" } });
});

test("a far side that reports that it hears gets recordings without an option", async () => {
  const about = { api_version: 1, models: [{ id: "big", context: 4096, tools: true, sound: true }] };
  const nf = await create(Object.assign(new FakeFar(), { about }), { mode: "prefer-near" });
  const content = [{ type: "input_audio", input_audio: { data: "UklGRg==", format: "wav" } }] as const;
  const { route } = await nf.chat.completions.create({ messages: [{ role: "user", content: [...content] }] });
  expect(route).toMatchObject({ side: "far", reason: "sound" });
});

/** A fetch that never answers, and rejects when it is aborted. */
const silent = (_: string, { signal }: RequestInit): Promise<Response> =>
  new Promise((__, reject) =>
    signal?.addEventListener("abort", () => {
      reject(signal.reason as Error);
    }),
  );

test("a silent far side does not delay an engine that is ready by more than a second, and answers later", async () => {
  const clock = new FakeClock();
  const far = new FakeFar();
  let isSilent = true;
  const fetch = (url: string, init: RequestInit): Promise<Response> =>
    isSilent ? silent(url, init) : far.fetch(url, init);
  const creating = create(far, {}, { clock, fetch });
  let created = false;
  void creating.then(() => (created = true));
  await clock.pass(900);
  expect(created).toBe(false);
  await clock.pass(200);
  expect(created).toBe(true);
  const nf = await creating;
  expect(nf.far).toBeNull();
  isSilent = false;
  expect((await nf.chat.completions.create({ messages: MESSAGES })).route).toMatchObject({ side: "far" });
  // The query that was left open ends by its own timeout, and its error is handled.
  await clock.pass(60_000);
});

test("a silent far side delays creation while the bundle loads, and one second longer", async () => {
  const clock = new FakeClock();
  let created = false;
  const creating = create(
    new FakeFar(),
    { timeouts: { far_first_token_ms: 20_000 } },
    { clock, fetch: silent, near: "./bundle/" },
  ).then((nf) => {
    created = true;
    return nf;
  });
  await clock.pass(5000);
  expect(created).toBe(false);
  loads[0]?.resolve(near({ text: "near by" }).engine);
  await clock.pass(1100);
  expect(created).toBe(true);
  expect((await creating).near.state).toBe("ready");
});

test("far answers on a page without crypto.randomUUID, as over http", async () => {
  const nf = await create(new FakeFar(), {});
  const { crypto } = globalThis;
  vi.stubGlobal("crypto", { getRandomValues: crypto.getRandomValues.bind(crypto) });
  const answer = await nf.chat.completions.create({ messages: MESSAGES }).finally(() => vi.unstubAllGlobals());
  expect(answer).toMatchObject({
    id: expect.stringMatching(/^chatcmpl-./) as string,
    choices: [{ message: { content: "far away" } }],
  });
});

test("a server that turns out to be another one fails like any far side, and near answers", async () => {
  const far = Object.assign(new FakeFar(), { reachable: false });
  const clock = new FakeClock();
  const nf = await create(far, { breaker: { open_ms: 1000 } }, { clock });
  Object.assign(far, { reachable: true, about: { api_version: 2, models: [] } });
  await clock.pass(1000);
  expect((await nf.chat.completions.create({ messages: MESSAGES })).route).toMatchObject({
    side: "near",
    reason: "far_failed",
  });
});

test("far answers while a bundle loads, near once it is there, and closing frees it", async () => {
  const phases: string[] = [];
  const nf = await create(
    new FakeFar(),
    { mode: "prefer-near" },
    { near: "./bundle/", load: { onProgress: ({ phase }) => phases.push(phase) } },
  );
  await turns();
  expect([loads.length, loads[0]?.bundle, nf.near.state]).toEqual([1, "./bundle/", "loading"]);
  loads[0]?.options.onProgress?.(PROGRESS);
  expect([nf.near.progress, phases]).toEqual([PROGRESS, ["download"]]);
  expect((await nf.chat.completions.create({ messages: MESSAGES })).route).toMatchObject({
    side: "far",
    reason: "near_unavailable",
  });
  let destroyed = 0;
  loads[0]?.resolve({ ...near({ text: "near by" }).engine, destroy: () => destroyed++ });
  await nf.near.settled;
  expect((await nf.chat.completions.create({ messages: MESSAGES })).route).toMatchObject({
    side: "near",
    reason: "prefer",
  });
  nf.close();
  expect([nf.near.state, destroyed]).toEqual(["none", 1]);
});

test("a request that only near may answer waits for the bundle, or for its own signal", async () => {
  const far = new FakeFar();
  const nf = await create(far, {}, { near: "./bundle/" });
  const private_ = nf.chat.completions.create({ messages: MESSAGES, labels: ["private"] });
  const left = nf.chat.completions.create(
    { messages: MESSAGES, labels: ["private"] },
    { signal: AbortSignal.abort(new Error("no time")) },
  );
  await expect(left).rejects.toThrow("no time");
  await turns();
  loads[0]?.resolve(near({ text: "near by" }).engine);
  expect((await private_).route).toMatchObject({ side: "near", reason: "private" });
  expect(far.chats).toEqual([]);
});

test("if a bundle cannot be loaded, far answers, and private requests get the reason", async () => {
  const nf = await create(new FakeFar(), { mode: "prefer-near" }, { near: "./bundle/" });
  await turns();
  loads[0]?.reject(new BundleError("no manifest"));
  await nf.near.settled;
  expect([nf.near.state, (await nf.chat.completions.create({ messages: MESSAGES })).route?.side]).toEqual([
    "failed",
    "far",
  ]);
  await expect(nf.chat.completions.create({ messages: MESSAGES, labels: ["private"] })).rejects.toThrow(/no manifest/);
});

test("a promised engine is awaited, and not freed with the router", async () => {
  let destroyed = 0;
  const engine = { ...near({ text: "near by" }).engine, destroy: () => destroyed++ };
  let give: (engine: EngineApi) => void = () => undefined;
  const nf = await create(
    new FakeFar(),
    { mode: "prefer-near" },
    { near: new Promise<EngineApi>((resolve) => (give = resolve)) },
  );
  expect((await nf.chat.completions.create({ messages: MESSAGES })).route).toMatchObject({
    side: "far",
    reason: "near_unavailable",
  });
  const private_ = nf.chat.completions.create({ messages: MESSAGES, labels: ["private"] });
  await turns();
  give(engine);
  expect((await private_).route).toMatchObject({ side: "near", reason: "private" });
  nf.close();
  expect([loads.length, nf.near.state, destroyed]).toEqual([0, "none", 0]);
});

test("if a promised engine fails, far answers, and private requests get the reason", async () => {
  const nf = await create(
    new FakeFar(),
    { mode: "prefer-near" },
    { near: Promise.reject(new BundleError("no manifest")) },
  );
  expect((await nf.chat.completions.create({ messages: MESSAGES })).route).toMatchObject({
    side: "far",
    reason: "near_unavailable",
  });
  await expect(nf.chat.completions.create({ messages: MESSAGES, labels: ["private"] })).rejects.toThrow(/no manifest/);
});

test("if only near may answer, creation waits for the bundle, and throws its error", async () => {
  const creating = create(new FakeFar(), { mode: "near-only" }, { near: "./bundle/" });
  await turns();
  loads[0]?.reject(new BundleError("no manifest"));
  await expect(creating).rejects.toMatchObject({ code: "bundle_error" });
});

test("closing before the bundle is loaded ends its load", async () => {
  const nf = await create(new FakeFar(), {}, { near: "./bundle/" });
  await turns();
  nf.close();
  expect(loads[0]?.options.signal?.aborted).toBe(true);
});

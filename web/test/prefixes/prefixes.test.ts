// An answer after a reload is the same as without kept prefixes, and computes only what follows the prefix. The pages of
// the fake runner hold tokens and hashes, so that a wrong page or state is found.

import { expect, test, vi } from "vitest";

import type { TokenRequest } from "../../src/engine/request.js";
import { TokenEngine } from "../../src/engine/token_engine.js";
import { RequestError } from "../../src/errors.js";
import type { PrefixHost } from "../../src/prefixes/prefixes.js";
import { Prefixes } from "../../src/prefixes/prefixes.js";
import { PrefixStore } from "../../src/prefixes/prefix_store.js";
import type { AnyManifest } from "../../src/runtime/any_manifest.js";
import type { RunnerLimits } from "../../src/runtime/memory.js";
import { sha256 } from "../../src/runtime/read_file.js";
import type { Bytes } from "../../src/runtime/source.js";
import { collect, onePool } from "../engine/engine_set_up.js";
import { FakeRunner } from "../engine/fake_runner.js";
import { memoryDisk, memoryLocks } from "../store/memory_folder.js";

const VOCAB = 64;
const BASE: RunnerLimits = {
  tokens: 32,
  sequences: 2,
  groups: onePool(200),
  pageSize: 4,
  context: 300,
  vocabSize: VOCAB,
};
const KINDS: readonly (readonly [string, RunnerLimits])[] = [
  ["pages", BASE],
  ["states", { ...BASE, states: 6 }],
  ["a window", { ...BASE, groups: [{ pages: 200, window: 20 }] }],
  [
    "two groups and states",
    {
      ...BASE,
      states: 6,
      groups: [
        { pages: 200, window: Infinity },
        { pages: 60, window: 20 },
      ],
    },
  ],
];
// Not at a page border.
const SYSTEM = Array.from({ length: 130 }, (_, index) => (7 * index + 3) % VOCAB);
const FULL = 128;
const ask = (...question: number[]): TokenRequest => ({
  promptIds: [...SYSTEM, ...question],
  prefix: SYSTEM.length,
  maxTokens: 12,
});
const SAMPLED = { sampling: { temperature: 1, seed: 5 } };

/** A page over a disk. ``changes``: of what it has of an engine. */
function page(limits: RunnerLimits, disk = memoryDisk(), locks = memoryLocks(), changes: Partial<PrefixHost> = {}) {
  const runner = new FakeRunner(limits);
  const tokens = new TokenEngine(runner, { vocabSize: VOCAB, endTokenIds: [] });
  const store = new PrefixStore(disk.root, locks);
  const manifest = {
    target: "webgpu",
    model: "fake",
    prefixes: [],
    files: [],
    embedding: null,
    classifier: null,
    plans: { generate: { states: {} } },
  } as unknown as AnyManifest;
  const prefixes = new Prefixes({
    tokens,
    manifest,
    id: "bundle",
    info: () => ({ adapter: "fake", activation: "float32" }),
    read: () => Promise.reject(new Error("nothing is shipped")),
    store,
    ...changes,
  });
  tokens.prefixes = (request) => prefixes.before(request);
  const answer = async (request: TokenRequest) => {
    const before = tokens.counts.computedTokens;
    const { ids, completion } = await collect(tokens.generateTokens(request));
    await prefixes.settled();
    return { ids, cached: completion.cachedTokens, computed: tokens.counts.computedTokens - before };
  };
  return { disk, locks, store, tokens, prefixes, answer };
}

/** The answer of an engine that keeps nothing. */
async function plain(limits: RunnerLimits, request: TokenRequest): Promise<readonly number[]> {
  const tokens = new TokenEngine(new FakeRunner(limits), { vocabSize: VOCAB, endTokenIds: [] });
  return (await collect(tokens.generateTokens(request))).ids;
}

test.each(KINDS)("a prefix is kept at its second use, and later pages continue it: %s", async (_, limits) => {
  const { disk, locks, answer, store } = page(limits);
  await answer(ask(1, 2));
  expect(await store.list()).toEqual([]);
  await answer(ask(3));
  expect(await store.list()).toMatchObject([{ model: "fake", tokens: FULL }]);
  for (const sampling of [{}, SAMPLED]) {
    const request = { ...ask(9, 8, 7), ...sampling };
    const found = await page(limits, disk, locks).answer(request);
    expect(found.ids).toEqual(await plain(limits, request));
    expect(found.cached).toBe(FULL);
    expect(found.computed).toBe(SYSTEM.length + 3 - FULL + 11);
  }
});

test.each(KINDS)("an unknown option is refused by name: %s", (_, limits) => {
  const read = (): Promise<never> => Promise.reject(new Error("nothing is shipped"));
  const given = { budgetBytes: 1, minUses: 1, read };
  expect(() => page(limits, memoryDisk(), memoryLocks(), { prefixes: given })).not.toThrow();
  expect(() => page(limits, memoryDisk(), memoryLocks(), { prefixes: { budget: 1, read } })).toThrow(
    "'prefixes.budget' is not supported; supported: budgetBytes, minUses, store",
  );
});

test("two pages that use it at once count both uses, and the third does not compute it", async () => {
  const [disk, locks] = [memoryDisk(), memoryLocks()];
  const pages = [page(BASE, disk, locks), page(BASE, disk, locks)];
  await Promise.all(pages.map(({ answer }) => answer(ask(1))));
  const { answer } = page(BASE, disk, locks);
  expect(await answer(ask(2))).toMatchObject({ cached: FULL });
});

test("answers to one prompt that begin together are one use", async () => {
  const { answer, store } = page(BASE);
  await Promise.all([answer(ask(1)), answer(ask(1))]);
  expect(await store.list()).toEqual([]);
});

test("what another device has computed is not kept", async () => {
  const { tokens, answer, store } = page(BASE, undefined, undefined, { minUses: 1 });
  tokens.foreign = [SYSTEM.slice(0, 40)];
  await answer(ask(1));
  expect(await store.list()).toEqual([]);
});

test("a damaged prefix is computed, and kept again", async () => {
  const { disk, locks, answer } = page(BASE, undefined, undefined, { minUses: 1 });
  await answer(ask(1));
  const path = [...disk.files.keys()].find((name) => name.endsWith(".pages")) ?? "";
  const bytes = disk.files.get(path) ?? new Uint8Array();
  const sound = bytes.slice();
  bytes[bytes.length - 1] = (bytes.at(-1) ?? 0) ^ 1;
  const next = page(BASE, disk, locks, { minUses: 1 });
  const found = await next.answer(ask(2));
  expect([found.ids, found.cached]).toEqual([await plain(BASE, ask(2)), 0]);
  expect(disk.files.get(path)).toEqual(sound);
});

test.each<[string, TokenRequest]>([
  ["a prefix of few tokens", { ...ask(1), prefix: 60 }],
  ["a request without one", { ...ask(1), prefix: undefined }],
  ["another prompt with nothing in common", { ...ask(1), prefix: () => [63] }],
  ["log-probabilities of the prompt", { ...ask(1), promptLogprobs: 5 }],
])("%s is not kept", async (_, request) => {
  const { answer, disk } = page(BASE, undefined, undefined, { minUses: 1 });
  await answer(request);
  expect(disk.files.size).toBe(0);
});

test("another prompt says which tokens are the prefix", async () => {
  const { answer, store } = page(BASE, undefined, undefined, { minUses: 1 });
  await answer({ ...ask(1), prefix: () => [...SYSTEM, 63] });
  expect(await store.list()).toMatchObject([{ tokens: FULL }]);
});

test("a stored prefix for which the pages have no room is computed, and read once", async () => {
  const { disk, locks, answer } = page(BASE, undefined, undefined, { minUses: 1 });
  await answer(ask(1));
  // Enough for the prompt, in whose way the stored pages would be.
  const small = page({ ...BASE, context: 160, groups: onePool(40) }, disk, locks);
  const busy = collect(small.tokens.generateTokens({ promptIds: SYSTEM.slice(1, 60), maxTokens: 60 }));
  const read = vi.spyOn(small.store, "read");
  const [first] = await Promise.all([small.answer(ask(2)), busy]);
  const second = await small.answer({ ...ask(3) });
  expect([first.ids, second.ids]).toEqual([await plain(BASE, ask(2)), await plain(BASE, ask(3))]);
  expect(read).toHaveBeenCalledTimes(1);
});

test("a prompt whose other form the chat template refuses is answered, and has no prefix", async () => {
  const { answer, disk } = page(BASE, undefined, undefined, { minUses: 1 });
  const refuses = (): never => {
    throw new RequestError("no empty message");
  };
  expect(await answer({ ...ask(1), prefix: refuses })).toMatchObject({ ids: await plain(BASE, ask(1)) });
  expect(disk.files.size).toBe(0);
});

test("a wrong prefix is refused", async () => {
  const { answer } = page(BASE);
  await expect(answer({ ...ask(1), prefix: 1000 })).rejects.toBeInstanceOf(RequestError);
  await expect(answer({ ...ask(1), prefix: -1 })).rejects.toThrow("from 0 to 131");
});

test("another device, precision or bundle computes its own", async () => {
  const { disk, locks, answer } = page(BASE, undefined, undefined, { minUses: 1 });
  await answer(ask(1));
  const others: Partial<PrefixHost>[] = [
    { id: "another" },
    { info: () => ({ adapter: "fake", activation: "float16" }) },
    { info: () => ({ adapter: "other", activation: "float32" }) },
  ];
  for (const changes of others)
    expect(await page(BASE, disk, locks, changes).answer(ask(2))).toMatchObject({ cached: 0 });
  expect(await page(BASE, disk, locks).answer(ask(2))).toMatchObject({ cached: FULL });
});

test("what is stored is restored again when the engine has forgotten it", async () => {
  const { answer, tokens } = page(BASE, undefined, undefined, { minUses: 1 });
  await answer(ask(1));
  expect(tokens.forgetAll()).toBe(true);
  expect(await answer(ask(2))).toMatchObject({ cached: FULL, ids: await plain(BASE, ask(2)) });
});

test("an answer that is aborted while its prefix is read ends with the reason, and the next one goes on", async () => {
  const { disk, locks, answer } = page(BASE, undefined, undefined, { minUses: 1 });
  await answer(ask(1));
  const next = page(BASE, disk, locks);
  const controller = new AbortController();
  const aborted = next.answer({ ...ask(2), signal: controller.signal });
  controller.abort(new Error("left"));
  await expect(aborted).rejects.toThrow("left");
  expect(await next.answer(ask(2))).toMatchObject({ cached: FULL });
});

test("pages that come with the bundle are used, stored, and never kept as the device's own", async () => {
  // The fake device stands for the compiler.
  const { tokens, answer, disk: compiled } = page(BASE, undefined, undefined, { minUses: 1 });
  await answer(ask(1));
  expect(compiled.files.size).toBeGreaterThan(0);
  const own = SYSTEM.slice(0, 100);
  const { keysAndValues } = await tokens.readRetained({ keys: own, adapter: "", isShared: false });
  const ids = new Uint8Array(Int32Array.from(own).buffer);
  const file = { file: "prefixes/0.float32.bin", size: keysAndValues.length, sha256: await sha256(keysAndValues) };
  const entry = { file: file.file, tokens: 100, tokens_sha256: await sha256(ids), activation: "float32" };
  const manifest = { model: "fake", prefixes: [entry], files: [file], target: "webgpu", embedding: null };
  let reads = 0;
  const shipped = {
    minUses: 1,
    manifest: { ...manifest, classifier: null, plans: { generate: { states: {} } } } as unknown as AnyManifest,
    read: (): Promise<Bytes> => {
      reads++;
      return Promise.resolve(keysAndValues);
    },
  };
  const { disk, locks, answer: first, store } = page(BASE, undefined, undefined, shipped);
  expect(await first(ask(2))).toMatchObject({ cached: 100, ids: await plain(BASE, ask(2)) });
  expect(await first(ask(3))).toMatchObject({ cached: FULL });
  expect(await store.list()).toMatchObject([{ tokens: 100 }]);
  // Nor is another system message that starts as the shipped one, even if all of it was computed after that.
  for (const start of [
    [...own, ...SYSTEM.slice(0, 60)],
    [...own, ...SYSTEM.slice(5, 65)],
  ]) {
    const request = { promptIds: [...start, 1, 2, 3, 4, 5], maxTokens: 2 };
    await first(request);
    expect(await first({ ...request, prefix: start.length })).toMatchObject({ cached: start.length + 4 });
  }
  expect(await store.list()).toHaveLength(1);
  const second = page(BASE, disk, locks, shipped);
  expect(await second.answer(ask(2))).toMatchObject({ cached: 100, ids: await plain(BASE, ask(2)) });
  expect(reads).toBe(1);
  // A prompt that starts with other tokens does not use them, and its prefix is the device's.
  const other = { ...ask(2), promptIds: [5, ...SYSTEM.slice(1), 2] };
  expect(await second.answer(other)).toMatchObject({ cached: 0, ids: await plain(BASE, other) });
  expect(await second.store.list()).toHaveLength(2);
});

test("pages of another layout that come with a bundle are not used", async () => {
  const ids = new Uint8Array(Int32Array.from(SYSTEM.slice(0, 100)).buffer);
  const entry = { file: "p.bin", tokens: 100, tokens_sha256: await sha256(ids), activation: "float32" };
  const { answer } = page(BASE, undefined, undefined, {
    manifest: { model: "fake", prefixes: [entry], files: [{ file: "p.bin" }] } as unknown as AnyManifest,
    read: () => Promise.resolve(new Uint8Array(8)),
  });
  expect(await answer(ask(2))).toMatchObject({ cached: 0, ids: await plain(BASE, ask(2)) });
});

// LoRA adapters in the token engine: the fake model adds a number to each token that it hashes, which no page shows.

import { expect, test } from "vitest";

import { Slots } from "../../src/adapters/slots.js";
import type { RetainedSequence } from "../../src/engine/sequence.js";
import { newConversation } from "../../src/engine/sequence.js";
import { TokenEngine } from "../../src/engine/token_engine.js";
import type { RunnerLimits } from "../../src/runtime/memory.js";
import { STOP, VOCAB, hashOf } from "./fake_model.js";
import { FakeRunner } from "./fake_runner.js";

const LIMITS: RunnerLimits = {
  tokens: 32,
  sequences: 4,
  groups: [{ pages: 32, window: Infinity }],
  pageSize: 4,
  context: 64,
  vocabSize: VOCAB,
  adapters: 2,
};
const PROMPT = [13, 2, 3, 13, 10, 1, 5, 13, 1, 14];

function engineWith(adapters: Readonly<Record<string, number>>, runner = new FakeRunner(LIMITS)): TokenEngine {
  const engine = new TokenEngine(runner, { vocabSize: VOCAB, endTokenIds: [] }, () =>
    Promise.resolve(new FakeRunner(LIMITS)),
  );
  for (const [name, change] of Object.entries(adapters)) load(engine, name, change);
  return engine;
}

function load(engine: TokenEngine, name: string, change: number): void {
  const slots = (engine.adapters ?? new Slots(LIMITS.adapters ?? 0)) as Slots;
  slots.load(name, `${name} ${change}`, new Map([["a", Float32Array.of(change)]]), (...args) =>
    engine.runner.writeState?.(...args),
  );
  engine.adapters = slots;
}

/** The answer of the fake model with an adapter, without any cache. */
function expected(change: number, count = 6): readonly number[] {
  const all = [...PROMPT];
  for (let index = 0; index < count; index++) all.push(hashOf(all.map((token) => token + change)) % VOCAB);
  return all.slice(PROMPT.length);
}

async function answer(
  engine: TokenEngine,
  adapter?: string,
  retained: RetainedSequence | null = null,
): Promise<{ ids: readonly number[]; cached: number }> {
  const ids: number[] = [];
  const tokens = engine.generateTokens({ promptIds: PROMPT, maxTokens: 6, adapter }, retained);
  for (;;) {
    const { done, value } = await tokens.next();
    if (done === true) return { ids, cached: value.cachedTokens };
    ids.push(value.tokenId);
  }
}

test("the answers of several adapters differ, so that the tests below can fail", () => {
  expect(new Set([0, 1, 5].map((change) => expected(change).join())).size).toBe(3);
  expect(expected(0)).not.toContain(STOP - 1);
});

test("sequences of one batch have their own adapters, and none", async () => {
  const runner = new FakeRunner(LIMITS);
  const engine = engineWith({ poet: 1, clerk: 5 }, runner);
  const answers = await Promise.all([answer(engine), answer(engine, "poet"), answer(engine, "clerk")]);
  expect(answers.map(({ ids }) => ids)).toEqual([expected(0), expected(1), expected(5)]);
  const [first] = runner.batches;
  expect(new Set(first?.adapters)).toEqual(new Set([-1, 0, 1]));
});

test("a prefix that another adapter has computed is not reused", async () => {
  const engine = engineWith({ poet: 1 });
  expect(await answer(engine)).toEqual({ ids: expected(0), cached: 0 });
  expect(await answer(engine, "poet")).toEqual({ ids: expected(1), cached: 0 });
  expect(await answer(engine, "poet")).toEqual({ ids: expected(1), cached: 8 });
  expect(await answer(engine)).toEqual({ ids: expected(0), cached: 8 });
});

test("an adapter with other values does not reuse what the one of the same name has computed", async () => {
  const engine = engineWith({ poet: 1 });
  await answer(engine, "poet");
  await (engine.adapters as Slots).unload("poet");
  load(engine, "poet", 5);
  expect(await answer(engine, "poet")).toEqual({ ids: expected(5), cached: 0 });
});

test("a conversation that continues with another adapter is computed again", async () => {
  const engine = engineWith({ poet: 1 });
  const retained = newConversation();
  await answer(engine, undefined, retained);
  expect(await answer(engine, "poet", retained)).toEqual({ ids: expected(1), cached: 0 });
  // All but the last token of the prompt, of which only 8 are in full pages.
  expect((await answer(engine, "poet", retained)).cached).toBe(9);
  const other = engineWith({ clerk: 1, poet: 1 });
  const restored = other.writeRetained(await engine.readRetained(retained));
  expect(restored).toEqual(retained);
  expect((await answer(other, "clerk", restored)).cached).toBe(0);
});

test("unloading waits for the answers that use the adapter, and new ones are refused", async () => {
  const engine = engineWith({ poet: 1, clerk: 5 });
  const slots = engine.adapters as Slots;
  const running = answer(engine, "poet");
  let unloaded = false;
  const unloading = slots.unload("poet").then(() => (unloaded = true));
  expect(slots.names).toEqual(["clerk"]);
  await expect(answer(engine, "poet")).rejects.toThrow("Adapter 'poet' is not loaded");
  await Promise.resolve();
  expect(unloaded).toBe(false);
  expect((await running).ids).toEqual(expected(1));
  await unloading;
  load(engine, "third", 3);
  expect((await answer(engine, "third")).ids).toEqual(expected(3));
});

test("a name or a slot that is taken is refused, and so is an adapter that is not loaded", async () => {
  const engine = engineWith({ poet: 1, clerk: 5 });
  expect(() => {
    load(engine, "poet", 2);
  }).toThrow("is loaded already");
  expect(() => {
    load(engine, "third", 2);
  }).toThrow("All 2 slots for adapters are in use");
  await expect(answer(engine, "third")).rejects.toThrow("Adapter 'third' is not loaded");
  await expect(answer(engineWith({}), "poet")).rejects.toThrow("Adapter 'poet' is not loaded");
});

test("an adapter that cannot be written leaves its name and its slot free", () => {
  const slots = new Slots(1);
  const states = new Map([["a", Float32Array.of(1)]]);
  const lost = new Error("the device is lost");
  const fail = (): never => {
    throw lost;
  };
  for (const name of ["poet", "poet", "clerk"])
    expect(() => {
      slots.load(name, name, states, fail);
    }).toThrow(lost);
  expect(slots.names).toEqual([]);
  slots.load("poet", "poet", states, () => undefined);
  expect(slots.use("poet").slot).toBe(0);
});

test("a new device gets the adapters", async () => {
  const engine = engineWith({ poet: 1 }, new FakeRunner(LIMITS, 2));
  expect((await answer(engine, "poet")).ids).toEqual(expected(1));
  expect(engine.counts.recoveries).toBe(1);
});

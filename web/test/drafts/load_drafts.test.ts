// Loading a model with a draft, on Dawn in Node: what is refused, and what the usage counts.

import { describe, expect, test } from "vitest";

import { headsOf, requireSameTokens } from "../../src/drafts/index.js";
import { RequestError } from "../../src/errors.js";
import type { LoadOptions, TuningEntry } from "../../src/index.js";
import { Engine } from "../../src/index.js";
import type { Notes } from "../../src/runtime/notes.js";
import { dawn } from "../../tools/dawn.js";
import { LIMITS } from "../engine/engine_set_up.js";
import { FakeRunner } from "../engine/fake_runner.js";
import { bytesOf, lettersBundle, memorySource } from "../letters_bundle.js";
import { seeingBundle } from "../seeing_letters.js";
import { vectorLetters } from "../vector_letters.js";
import { waitFor } from "../wait_for.js";

const gpu = dawn();
const hasAdapter = (await gpu.requestAdapter()) !== null;
const letters = lettersBundle();

test.each([
  ["has 9 tokens, LETTERS has 8", { spec: { ...letters.manifest.spec, vocab_size: 9 } }],
  [
    "has the tokenizer 77, LETTERS has [0-9a-f]{64}",
    { files: letters.manifest.files.map((file) => ({ ...file, sha256: "77" })) },
  ],
  ["is not a bundle for WebGPU that generates text", vectorLetters()],
])("a draft that %s is refused by name", (message, changes) => {
  const model = { ...letters.manifest, model: "LETTERS" };
  requireSameTokens(model, letters.manifest);
  const { manifest } = lettersBundle(changes);
  const check = (): void => {
    requireSameTokens(model, { ...manifest, model: "OTHER" });
  };
  expect(check).toThrow(RequestError);
  expect(check).toThrow(new RegExp(`The draft OTHER ${message}.*; use a draft with the same tokenizer`));
});

test("heads of an earlier compiler read no images, an assistant always does", () => {
  const runner = new FakeRunner({ ...LIMITS, draftPages: 9 });
  const { manifest } = seeingBundle();
  const { generate } = manifest.plans;
  if (generate === undefined) throw new Error("the letters have no plan");
  const readsWith = (inputs: object, first: string): boolean => {
    const states = { kept: { shape: [first, 2, 1, 4, 4], dtype: "activation" } } as typeof generate.states;
    const draft = { ...generate, states, inputs: inputs as typeof generate.inputs };
    return headsOf(runner, { ...manifest, plans: { generate, draft } }).readsImages;
  };
  const features = { features: { shape: ["F", 4], dtype: "float32" } };
  expect([readsWith({}, "PD"), readsWith(features, "PD"), readsWith({}, "P")]).toEqual([false, true, true]);
});

test("options that need each other are refused before anything is loaded", async () => {
  const bundle = memorySource({ ...letters.files, "manifest.json": bytesOf("{}") });
  await expect(Engine.load(bundle, { draftTokens: 3 })).rejects.toThrow("draftTokens needs a draft");
  const plain = memorySource(letters.files);
  await expect(Engine.load(plain, { gpu, draft: "heads" })).rejects.toThrow("has no heads that draft tokens");
  await expect(Engine.load(bundle, { draft: "ngram", draftTokens: 0 })).rejects.toThrow("draftTokens is 0");
  const embeds = memorySource(lettersBundle(vectorLetters()).files);
  await expect(Engine.load(embeds, { gpu, draft: "ngram" })).rejects.toThrow("cannot check drafts");
});

describe.skipIf(!hasAdapter)("on a device", () => {
  test("the plan and the info of a model count its draft, and a budget for the model alone is refused", async () => {
    const source = memorySource(letters.files);
    const options = { gpu, draftTokens: 3, maxSequences: 2 };
    const alone = await Engine.plan(source, { ...options, draft: "ngram" });
    const plan = await Engine.plan(source, { ...options, draft: source });
    expect(plan.totalBytes).toBe(alone.totalBytes + (plan.draftBytes ?? 0));
    const engine = await Engine.load(source, { ...options, draft: source });
    const { weightBytes, stateBytes, totalBytes, draftBytes = 0 } = engine.info;
    engine.destroy();
    expect(weightBytes).toBe(plan.weightBytes);
    expect(weightBytes).toBe(2 * alone.weightBytes);
    // A device has staging buffers beside what is planned.
    expect(draftBytes).toBeGreaterThanOrEqual(plan.draftBytes ?? 0);
    expect(draftBytes).toBeLessThan(totalBytes / 2);
    expect(stateBytes).toBeGreaterThan(plan.keyValueBytes);
    expect(totalBytes).toBeGreaterThan(weightBytes + stateBytes);
    const load = Engine.load(source, { ...options, draft: source, memoryBudget: 0.9 * alone.totalBytes });
    await expect(load).rejects.toThrow("The model and its draft take at least");
  });

  test("the usage counts the drafts of a model, and a lost device gets both models again", async () => {
    const loading = (): Promise<Engine> =>
      Engine.load(memorySource(letters.files), { gpu, draft: memorySource(letters.files), draftTokens: 3 });
    const engine = await loading();
    const ask = { prompt: "b", max_tokens: 12, temperature: 0 } as const;
    const plain = await Engine.load(memorySource(letters.files), { gpu });
    const expected = await plain.completions.create(ask);
    expect(expected.usage.completion_tokens_details).toBeUndefined();
    plain.destroy();
    for (let turn = 0; turn < 2; turn++) {
      const { choices, usage } = await engine.completions.create(ask);
      expect(choices[0]?.text).toBe(expected.choices[0]?.text);
      const {
        accepted_prediction_tokens: accepted = 0,
        rejected_prediction_tokens: rejected = 0,
        tokens_per_pass: perPass = 0,
      } = usage.completion_tokens_details ?? {};
      expect(accepted).toBeGreaterThan(0);
      // A token from the prompt, and its end, behind which more drafts are right.
      expect([usage.completion_tokens, perPass]).toEqual([1, 1]);
      expect(rejected).toBeLessThanOrEqual(3);
      // The next answer loads both again.
      expect(engine.unload()).toBe(true);
    }
    engine.destroy();
  });

  /** The notes of an earlier load that measured these milliseconds for 1, 3, 5 and 8 rows, and 1 for steps ahead. */
  const notesOf = (...ms: readonly number[]): Notes => {
    const steps = ms.map((each, index) => ({ rows: [1, 3, 5, 8][index] ?? 0, ms: each }));
    const record = { variants: {}, steps: { chunk: null, decode: { ahead_ms: 1, steps } } };
    return {
      read: (key) => Promise.resolve(key.includes("tuned ") ? record : undefined),
      write: (key) => (key.includes("tuned ") ? Promise.reject(new Error("measured again")) : Promise.resolve()),
    };
  };

  test.each([
    ["where they pay", {}, [1, 1.1, 1.2, 1.3], true],
    ["where they do not", {}, [1, 4, 6, 9], false],
    ["which are switched off", { draft: false }, [1, 1.1, 1.2, 1.3], false],
  ] as const)("by default, drafts of the text %s: the usage has the tokens of a pass", async (_, options, ms, pays) => {
    const ask = { prompt: "b", max_tokens: 40, temperature: 0.8, seed: 3 } as const;
    // It repeats four tokens for ever.
    const { files } = lettersBundle({ spec: { ...letters.manifest.spec, eos_token_ids: [] } });
    const source = memorySource(files);
    const plain = await Engine.load(source, { gpu, tuning: false, draft: false });
    const expected = await plain.completions.create(ask);
    plain.destroy();
    const engine = await Engine.load(source, { gpu, tuning: false, notes: notesOf(...ms), ...options });
    // The drafts begin once the record is read.
    await engine.exportTuning();
    const isRight = async (): Promise<void> => {
      const before = engine.counts.draftedTokens;
      const { choices, usage } = await engine.completions.create(ask);
      expect(choices[0]?.text).toBe(expected.choices[0]?.text);
      const { tokens_per_pass: perPass } = usage.completion_tokens_details ?? {};
      expect(engine.counts.draftedTokens > before).toBe(pays);
      if (pays) expect(perPass).toBeGreaterThan(1.5);
      else expect(perPass).toBeUndefined();
    };
    await waitFor(isRight);
    engine.destroy();
  });

  test("the times of steps are measured once, also if the first load had no drafts", async () => {
    const stored = new Map<string, unknown>();
    const notes: Notes = {
      read: (key) => Promise.resolve(stored.get(key)),
      write: (key, value) => Promise.resolve(void stored.set(key, value)),
    };
    const recordOf = async (options: LoadOptions): Promise<TuningEntry | null> => {
      const engine = await Engine.load(memorySource(letters.files), { gpu, tuning: true, notes, ...options });
      const record = await engine.exportTuning();
      engine.destroy();
      return record;
    };
    expect((await recordOf({ draft: false }))?.steps?.decode ?? null).toBeNull();
    const record = await recordOf({});
    const { ahead_ms: ahead = 0, steps = [] } = record?.steps?.decode ?? {};
    expect(steps.map(({ rows }) => rows)).toEqual([1, 3, 5, 8]);
    for (const ms of [ahead, ...steps.map((step) => step.ms)]) expect(ms).toBeGreaterThan(0);
    expect(ahead).toBeLessThanOrEqual(steps[0]?.ms ?? 0);
    expect(await recordOf({})).toEqual(record);
    expect(await recordOf({ draft: false })).toEqual(record);
  });
});

// Self-test and tuning on a device: Dawn in Node, on any adapter that Vulkan finds, and bundles with variants that are
// wrong or slow. A slow variant is one that these tests report as slow: no clock runs, so no test needs an idle machine.

import { createHash } from "node:crypto";

import { afterEach, beforeEach, expect, test, vi } from "vitest";

import type { LoadOptions, Notes, SelfTestInfo } from "../../src/index.js";
import { Engine } from "../../src/index.js";
import type { Manifest, VariantEntry } from "../../src/runtime/manifest.js";
import { Runner } from "../../src/runtime/runner.js";
import { dawn } from "../../tools/dawn.js";
import type { LettersBundle } from "../letters_bundle.js";
import { bytesOf, lettersBundle, memorySource, SELF_TEST } from "../letters_bundle.js";
import { EMBED } from "../letters_kernels.js";
import { VECTOR_TEST, vectorLetters } from "../vector_letters.js";
import { MemoryNotes } from "./memory_notes.js";

const gpu = dawn();
const hasAdapter = (await gpu.requestAdapter()) !== null;
const REASON = "Dawn finds no adapter; set VK_ICD_FILENAMES to a Vulkan driver such as SwiftShader";
if (!hasAdapter && process.env.CI !== undefined) throw new Error(`${REASON} (CI is set, so this is not skipped)`);
if (!hasAdapter) console.warn(`skipped: ${REASON}`);
const withGpu = test.runIf(hasAdapter);

const WRONG = EMBED.replace("u32(id)", "(u32(id) ^ 1u)");
const NOT_A_NUMBER = EMBED.replace("y[g.y * 8u + l.x] =", "y[g.y * 8u + l.x] = sqrt(f32(u.S) * -1.0) +");
const KERNELS = {
  embed_wrong: WRONG,
  embed_refused: EMBED.replace("fn main", "fn nowhere"),
  embed_nan: NOT_A_NUMBER,
  embed_slow: EMBED,
};

// Tuning runs each variant on the device once, and then sees these times.
// oxlint-disable-next-line typescript/unbound-method -- It is called with its runner.
const time = Runner.prototype.time;
beforeEach(() => {
  vi.useFakeTimers({ toFake: ["performance"] });
  vi.spyOn(Runner.prototype, "time").mockImplementation(async function (this: Runner, batch, list, variant, count) {
    expect(await time.call(this, batch, list, variant, 1)).toBeGreaterThanOrEqual(0);
    return count * (variant === "embed_slow" ? 8 : 1);
  });
});
afterEach(() => {
  vi.useRealTimers();
  vi.restoreAllMocks();
});

const row = (name: string, rest: Partial<VariantEntry> = {}): VariantEntry => ({
  kernels: [name],
  activation: null,
  needs: [],
  when: null,
  ...rest,
});

/** The letters bundle with other variants of "embed". */
function bundleOf(embed: readonly VariantEntry[], changes: Partial<Manifest> = {}): LettersBundle {
  const { variants } = lettersBundle().manifest;
  return lettersBundle({ variants: { ...variants, embed }, ...changes }, KERNELS);
}

async function load({ files }: LettersBundle, options: LoadOptions = {}): Promise<Engine> {
  return Engine.load(memorySource(files), { gpu, tuning: false, notes: new MemoryNotes(), ...options });
}

async function answer(engine: Engine): Promise<readonly number[]> {
  const ids: number[] = [];
  // Token 7 is followed by 6 and 3, then by 2 and 7 again.
  for await (const { tokenId } of engine.generateTokens({ promptIds: [7], maxTokens: 5 })) ids.push(tokenId);
  return ids;
}

const RIGHT = [6, 3, 2, 7, 6];

/** Load a bundle, and return its self-test and its answer. */
async function selfTestOf(
  bundle: LettersBundle,
  options: LoadOptions = {},
): Promise<SelfTestInfo & { ids: readonly number[]; kernels: number | null }> {
  const engine = await load(bundle, options);
  const result = { ...engine.info.selfTest, ids: await answer(engine), kernels: engine.info.kernels };
  engine.destroy();
  return result;
}

withGpu("a correct bundle passes, and reports its deviation", async () => {
  let runs = 0;
  const onProgress: LoadOptions["onProgress"] = ({ phase }) => {
    if (phase !== "self-test") return;
    runs++;
    vi.advanceTimersByTime(5);
  };
  const result = await selfTestOf(lettersBundle(), { onProgress });
  expect(result).toMatchObject({ state: "passed", switchedOff: [], remembered: false, ids: RIGHT });
  expect(result.largestDeviation).toBeLessThan(1e-5);
  expect(runs).toBeGreaterThan(0);
  expect(result.durationMs).toBe(5 * runs);
});

withGpu.each([
  ["the first choice", [row("embed_wrong"), row("embed_many")]],
  ["the first choice for few tokens", [row("embed_wrong", { when: ["<=", "S", 4] }), row("embed_many")]],
  ["the last row", [row("embed_few", { when: ["<=", "S", 4] }), row("embed_wrong")]],
  [
    "what would run by itself, for few tokens and for many,",
    [row("embed_wrong", { when: ["<=", "S", 4] }), row("embed_wrong"), row("embed_many")],
  ],
])("%s that is wrong is switched off, and answers are right", async (_, embed) => {
  const result = await selfTestOf(bundleOf(embed));
  expect(result).toMatchObject({ state: "passed-with-switched-off", switchedOff: ["embed_wrong"], ids: RIGHT });
});

withGpu(
  "alternatives are compiled and tested if they may run, which is when tuning looks for the fastest",
  async () => {
    const bundle = bundleOf([row("embed_many"), row("embed_wrong")]);
    const without = await selfTestOf(bundle);
    expect(without).toMatchObject({ state: "passed", ids: RIGHT });
    expect(await selfTestOf(bundle, { tuning: true })).toMatchObject({
      switchedOff: ["embed_wrong"],
      kernels: (without.kernels ?? NaN) + 1,
      ids: RIGHT,
    });
    // The note of a load without tuning does not cover alternatives; the note of a load with tuning does.
    const notes = new MemoryNotes();
    await selfTestOf(bundle, { notes });
    expect(await selfTestOf(bundle, { notes })).toMatchObject({ remembered: true });
    expect(await selfTestOf(bundle, { notes, tuning: true })).toMatchObject({
      switchedOff: ["embed_wrong"],
      remembered: false,
    });
    expect(await selfTestOf(bundle, { notes, tuning: true })).toMatchObject({
      switchedOff: ["embed_wrong"],
      remembered: true,
    });
  },
);

withGpu("a variant that the device refuses is switched off if there is another one", async () => {
  const bundle = bundleOf([row("embed_refused"), row("embed_many")]);
  const notes = new MemoryNotes();
  for (const remembered of [false, true]) {
    const result = await selfTestOf(bundle, { notes });
    expect(result).toMatchObject({
      state: "passed-with-switched-off",
      switchedOff: ["embed_refused"],
      ids: RIGHT,
      remembered,
    });
  }
  // The note of another driver, which accepted it.
  const note = { ...([...notes.kept.values()][0] as object), switchedOff: [] };
  const outdated: Notes = { read: () => Promise.resolve(note), write: () => Promise.resolve() };
  expect(await selfTestOf(bundle, { notes: outdated })).toMatchObject({
    switchedOff: ["embed_refused"],
    ids: RIGHT,
    remembered: false,
  });
  const untested = await selfTestOf(bundle, { selfTest: "never" });
  expect(untested).toMatchObject({ state: "untested", switchedOff: ["embed_refused"], ids: RIGHT });
  await expect(load(bundleOf([row("embed_refused")]))).rejects.toMatchObject({
    code: "device_error",
    details: { kernel: "embed_refused" },
  });
});

withGpu(
  "the result of the self-test is stored: the next load runs no test and compiles only kernels that run",
  async () => {
    const bundle = bundleOf([
      row("embed_wrong"),
      row("embed_nan", { when: ["<=", "S", 4] }),
      row("embed_many"),
      row("embed_few"),
    ]);
    const notes = new MemoryNotes();
    const first = await selfTestOf(bundle, { notes });
    expect(first).toMatchObject({
      switchedOff: ["embed_wrong", "embed_nan"],
      remembered: false,
      ids: RIGHT,
      kernels: 8,
    });
    const phases: string[] = [];
    const second = await selfTestOf(bundle, { notes, onProgress: ({ phase }) => phases.push(phase) });
    expect(second).toEqual({ ...first, remembered: true, kernels: 5 });
    expect(phases).not.toContain("self-test");
    expect(notes.writes).toBe(1);
    expect(await selfTestOf(bundle, { notes, selfTest: "always" })).toMatchObject({
      remembered: false,
      switchedOff: first.switchedOff,
    });
    // The note does not apply to another bundle.
    expect(await selfTestOf(bundleOf([row("embed_many")]), { notes })).toMatchObject({
      state: "passed",
      remembered: false,
    });
  },
);

withGpu("an invalid note is ignored", async () => {
  const notes: Notes = { read: () => Promise.resolve({ activation: "int3" }), write: () => Promise.resolve() };
  expect(await selfTestOf(lettersBundle(), { notes })).toMatchObject({ state: "passed", remembered: false });
});

withGpu("the state is untested if the test is switched off, and if the bundle has none", async () => {
  const wrong = bundleOf([row("embed_wrong")]);
  const untested = { state: "untested", switchedOff: [], largestDeviation: null };
  expect(await selfTestOf(wrong, { selfTest: "never" })).toMatchObject(untested);
  expect(await selfTestOf(lettersBundle({ self_test: null }))).toMatchObject(untested);
});

withGpu("a device that chooses the wrong token is detected, although its logits are right", async () => {
  const { manifest, files } = lettersBundle();
  const code = new TextDecoder().decode(files["kernels/sample.wgsl"]).replace("i < 8u", "i < 2u");
  const file = bytesOf(code);
  const kernels = {
    ...manifest.kernels,
    sample: { ...manifest.kernels.sample, sha256: createHash("sha256").update(file).digest("hex") },
  };
  const bundle = lettersBundle({ kernels: kernels as Manifest["kernels"] });
  await expect(load({ ...bundle, files: { ...bundle.files, "kernels/sample.wgsl": file } })).rejects.toThrow(
    "computes the model wrongly",
  );
});

withGpu.each([
  [
    "embed_wrong",
    /computes the model wrongly \(with float32 activations logits are off by 100 %, at most 0\.100 % is rounding\)/,
  ],
  ["embed_nan", /computes the model wrongly \(with float32 activations logits are not numbers, /],
])("if the only row is %s, loading is a DeviceError that names the device", async (name, message) => {
  const loading = load(bundleOf([row(name)]));
  await expect(loading).rejects.toThrow(message);
  await expect(loading).rejects.toMatchObject({ code: "device_error", details: { activations: ["float32"] } });
});

withGpu("a device on which every variant is wrong is refused as soon as the time for searches is over", async () => {
  const wrong = Array.from({ length: 12 }, (_, index) => row("embed_wrong", { when: ["<=", "S", 100 + index] }));
  const runs = new Set<number>();
  const onProgress: LoadOptions["onProgress"] = ({ phase, selfTestRuns }) => {
    if (phase === "self-test" && selfTestRuns !== undefined) runs.add(selfTestRuns);
  };
  const bundle = bundleOf([...wrong, row("embed_nan")], { self_test: lettersBundle().manifest.self_test });
  const loading = load(bundle, { selfTestLimitMs: 0, tuning: true, onProgress });
  await expect(loading).rejects.toThrow(
    /the self-test ran 2 times .* and reached its limit of 0 s \(selfTestLimitMs\)/,
  );
  await expect(loading).rejects.toMatchObject({
    code: "device_error",
    details: { step: "self-test", runs: 2, reachedLimit: true },
  });
  // The number of earlier runs, before each run.
  expect([...runs]).toEqual([0, 1]);
  const unlimited = load(bundle, { tuning: true });
  await expect(unlimited).rejects.toMatchObject({ details: { reachedLimit: false } });
  await expect(unlimited).rejects.not.toThrow("selfTestLimitMs");
  expect(await selfTestOf(lettersBundle(), { selfTestLimitMs: 0 })).toMatchObject({ state: "passed", ids: RIGHT });
});

withGpu("each activation dtype has its own share of the time for searches", async () => {
  const rows = [row("embed_wrong", HALF), row("embed_nan", HALF), row("embed_many", FULL)];
  expect(await selfTestOf(bundleOf(rows, BOTH), { selfTestLimitMs: 0 })).toMatchObject({
    switchedOff: ["float16"],
    ids: RIGHT,
  });
});

/** An embedding model's letters, with pages or without, and with these rows for "embed". */
function vectorBundle(isPaged: boolean, embed: readonly VariantEntry[]): LettersBundle {
  return bundleOf(embed, { ...vectorLetters({ isPaged }), vector_test: VECTOR_TEST });
}

const letterAfter = async (engine: Engine, input: number[]): Promise<number> =>
  (await engine.embeddings.create({ input })).data[0]?.embedding.indexOf(1) ?? -1;

withGpu.each([true, false])(
  "wrong vectors are switched off or refused before the first one (pages: %s)",
  async (isPaged) => {
    const sound = await load(vectorBundle(isPaged, [row("embed_many")]));
    expect(sound.info.selfTest).toMatchObject({ state: "passed", switchedOff: [], remembered: false });
    expect(await letterAfter(sound, [7, 2])).toBe(7);
    sound.destroy();
    const notes = new MemoryNotes();
    const mended = vectorBundle(isPaged, [
      row("embed_wrong", { when: ["<=", "S", 4] }),
      row("embed_nan"),
      row("embed_many"),
    ]);
    for (const remembered of [false, true]) {
      const engine = await load(mended, { notes });
      expect(engine.info.selfTest).toMatchObject({ switchedOff: ["embed_wrong", "embed_nan"], remembered });
      expect(await letterAfter(engine, [7, 2])).toBe(7);
      engine.destroy();
    }
    await expect(load(vectorBundle(isPaged, [row("embed_wrong")]))).rejects.toThrow(
      /computes the model wrongly \(with float32 activations vectors are off by 100 %, at most 0\.100 % is rounding\)/,
    );
    await expect(load(vectorBundle(isPaged, [row("embed_nan")]))).rejects.toThrow("vectors are not numbers");
  },
);

withGpu("variants of an encoder are compared at the sizes of texts", async () => {
  const slow = [
    row("embed_slow", { when: ["<=", "S", 40] }),
    row("embed_few", { when: ["<=", "S", 40] }),
    row("embed_many"),
  ];
  const engine = await load(vectorBundle(false, slow), { tuning: true });
  const record = await engine.exportTuning();
  expect(record?.variants.embed?.[0]).toMatchObject({ when: ["<=", "S", 32] });
  expect(record?.variants.embed?.[0]?.variant).toMatch(/^embed_(few|many)$/);
  engine.destroy();
});

// Here, "float16" needs no feature of the device and is computed as float32, because these tests only concern the
// choice of the activation dtype.
const BOTH: Partial<Manifest> = {
  activations: [
    { dtype: "float16", needs: [] },
    { dtype: "float32", needs: [] },
  ],
};
const HALF = { activation: "float16" } as const;
const FULL = { activation: "float32" } as const;

withGpu(
  "if all float16 rows are wrong, the bundle is loaded again with float32, and directly so the next time",
  async () => {
    const bundle = bundleOf([row("embed_wrong", HALF), row("embed_nan", HALF), row("embed_many", FULL)], BOTH);
    const notes = new MemoryNotes();
    for (const remembered of [false, true]) {
      const engine = await load(bundle, { notes });
      expect(engine.info).toMatchObject({
        activation: "float32",
        selfTest: { state: "passed-with-switched-off", switchedOff: ["float16"], remembered },
      });
      expect(await answer(engine)).toEqual(RIGHT);
      engine.destroy();
    }
  },
);

// Here, int8 is computed as float32 too, and its integer products are the rows that need their feature.
const INTEGER_DOTS = "packed_4x8_integer_dot_product";
const WITH_INT8: Partial<Manifest> = {
  activations: [
    { dtype: "int8", needs: [INTEGER_DOTS] },
    { dtype: "float32", needs: [] },
  ],
  self_test: { ...SELF_TEST, tolerances: { int8: 0.05, float32: 0.001 } },
};
const DOTS = { activation: "int8", needs: [INTEGER_DOTS] } as const;
const INT8 = { activation: "int8" } as const;

withGpu.each([
  ["computes all integer products wrongly", [row("embed_wrong", DOTS), row("embed_nan", DOTS)]],
  ["refuses all integer products", [row("embed_refused", DOTS)]],
])("a device that %s gets the next dtype, although the other rows of int8 are right", async (_, products) => {
  const bundle = bundleOf([...products, row("embed_many", INT8), row("embed_few", FULL)], WITH_INT8);
  const notes = new MemoryNotes();
  for (const remembered of [false, true]) {
    const engine = await load(bundle, { notes, tuning: true });
    expect(engine.info).toMatchObject({
      activation: "float32",
      selfTest: { state: "passed-with-switched-off", switchedOff: ["int8"], remembered },
    });
    expect(await answer(engine)).toEqual(RIGHT);
    engine.destroy();
  }
  // Without another dtype, the other rows of int8 answer.
  const { activations = [], ...rest } = WITH_INT8;
  const alone = bundleOf([...products, row("embed_many", INT8)], { ...rest, activations: activations.slice(0, 1) });
  expect(await selfTestOf(alone)).toMatchObject({ state: "passed-with-switched-off", ids: RIGHT });
});

withGpu("if no dtype is right, a bundle with int8 may have been compiled with too coarse activations", async () => {
  const int8 = { ...WITH_INT8, activations: [{ dtype: "int8", needs: [] }] } as const;
  await expect(load(bundleOf([row("embed_wrong", INT8)], int8))).rejects.toThrow(
    "another device, or compile the model without int8 activations",
  );
  await expect(load(bundleOf([row("embed_wrong", FULL)]))).rejects.toThrow(/or use another device$/);
});

withGpu("int8 stays if one of its two products is right, and without their feature the next dtype runs", async () => {
  const rows = [row("embed_wrong", DOTS), row("embed_many", DOTS), row("embed_few", INT8), row("embed_few", FULL)];
  const bundle = bundleOf(rows, WITH_INT8);
  const notes = new MemoryNotes();
  const engine = await load(bundle, { notes });
  expect(engine.info).toMatchObject({ activation: "int8", selfTest: { switchedOff: ["embed_wrong"] } });
  expect(await answer(engine)).toEqual(RIGHT);
  engine.destroy();
  const older = { wgslLanguageFeatures: new Set(), requestAdapter: gpu.requestAdapter.bind(gpu) } as unknown as GPU;
  // A flag of the browser has switched the feature off since the bundle was tested.
  const other = await load(bundle, { gpu: older, notes });
  expect(other.info).toMatchObject({ activation: "float32", selfTest: { state: "passed", remembered: false } });
  other.destroy();
});

withGpu("if the device refuses all float16 rows, float32 rows replace them", async () => {
  const result = await selfTestOf(bundleOf([row("embed_refused", HALF), row("embed_many", FULL)], BOTH));
  expect(result).toMatchObject({ state: "passed-with-switched-off", switchedOff: ["float16"], ids: RIGHT });
});

withGpu("if float16 and float32 are both wrong, the error states the deviation of each", async () => {
  const loading = load(bundleOf([row("embed_wrong", HALF), row("embed_nan", FULL)], BOTH));
  await expect(loading).rejects.toThrow(
    /with float16 activations logits are off by 100 %, .*; with float32 activations logits are not numbers/,
  );
});

withGpu("an aborted self-test ends the load with the signal's reason", async () => {
  const controller = new AbortController();
  const onProgress: LoadOptions["onProgress"] = ({ phase }) => {
    if (phase === "self-test") controller.abort();
  };
  await expect(load(lettersBundle(), { signal: controller.signal, onProgress })).rejects.toHaveProperty(
    "name",
    "AbortError",
  );
});

// --- tuning -------------------------------------------------------------------------------------------------

const SLOW_FIRST = [
  row("embed_slow", { when: ["<=", "S", 4] }),
  row("embed_few", { when: ["<=", "S", 4] }),
  row("embed_slow"),
  row("embed_many"),
];

withGpu(
  "a slow first choice is not used, on this load and the next, and the record contains the faster one",
  async () => {
    const bundle = bundleOf([...SLOW_FIRST, row("embed_wrong")]);
    const notes = new MemoryNotes();
    const engine = await load(bundle, { notes, tuning: true });
    const record = await engine.exportTuning();
    expect(record?.activation).toBe("float32");
    expect(Object.keys(record?.variants ?? {})).toEqual(["embed"]);
    for (const { variant } of record?.variants.embed ?? []) expect(variant).toMatch(/^embed_(few|many)$/);
    expect(record?.variants.embed?.map(({ when }) => when)).toEqual([
      ["<=", "S", 1],
      [">=", "S", 32],
      ["and", [">", "S", 1], ["<=", "S", 4]],
      ["and", [">", "S", 4], ["<=", "S", 8]],
    ]);
    expect(await answer(engine)).toEqual(RIGHT);
    engine.destroy();

    const again = await load(bundle, { notes, tuning: true });
    expect(await again.exportTuning()).toEqual(record);
    // The slow variant still runs for sizes in between.
    expect(again.info).toMatchObject({ selfTest: { remembered: true, switchedOff: ["embed_wrong"] } });
    expect(await answer(again)).toEqual(RIGHT);
    again.destroy();
  },
);

withGpu("a record that the bundle ships for this adapter is used unchanged, and nothing is measured", async () => {
  const measured = await load(bundleOf(SLOW_FIRST), { tuning: true });
  const record = await measured.exportTuning();
  measured.destroy();
  const shipped = record === null ? [] : [record];
  const engine = await load(bundleOf(SLOW_FIRST, { tuning: shipped }), { tuning: true });
  expect(await engine.exportTuning()).toEqual(record);
  expect(engine.info.selfTest.state).toBe("passed");
  expect(await answer(engine)).toEqual(RIGHT);
  engine.destroy();
});

// Wrong answers show that the wrong variant runs, which only the record can have caused.
withGpu("the faster variant runs as soon as it is found, and immediately if the bundle ships the record", async () => {
  const embed = [row("embed_slow"), row("embed_wrong")];
  const options = { selfTest: "never", tuning: true } as const;
  const measured = await load(bundleOf(embed), options);
  const record = await measured.exportTuning();
  expect(record?.variants.embed).toContainEqual({ when: ["<=", "S", 1], variant: "embed_wrong" });
  expect(await answer(measured)).not.toEqual(RIGHT);
  measured.destroy();
  const shipped = await load(bundleOf(embed, { tuning: record === null ? [] : [record] }), options);
  expect(await answer(shipped)).not.toEqual(RIGHT);
  shipped.destroy();
});

// Many pages, beside which a larger chunk takes little memory.
const ROOM = { pages: 4000 };

withGpu("a chunk is chosen once, and used by later loads, also of a bundle that ships the record", async () => {
  const notes = new MemoryNotes();
  const slow = vi.spyOn(Runner.prototype, "submit");
  const first = await load(lettersBundle(), { notes, tuning: true, ...ROOM });
  expect(first.info.prefillChunk).toBe(64);
  const record = await first.exportTuning();
  const chunk = record?.steps?.chunk ?? 0;
  expect([64, 128, 256]).toContain(chunk);
  expect(first.info.prefillChunk).toBe(chunk);
  expect(await answer(first)).toEqual(RIGHT);
  first.destroy();

  const loads: [LettersBundle, LoadOptions][] = [
    [lettersBundle(), { notes, tuning: true }],
    [lettersBundle({ tuning: record === null ? [] : [record] }), {}],
  ];
  for (const [bundle, options] of loads) {
    slow.mockClear();
    const again = await load(bundle, { ...options, ...ROOM });
    expect(await again.exportTuning()).toEqual(record);
    expect(again.info).toMatchObject({ prefillChunk: chunk });
    expect(slow.mock.calls.every(([{ token_ids }]) => token_ids.length < 64)).toBe(true);
    again.destroy();
  }
});

withGpu("a shipped record without a chunk keeps its variants, and its chunk is measured", async () => {
  const { files } = lettersBundle();
  const measured = await load({ files, manifest: lettersBundle().manifest }, { tuning: true, ...ROOM });
  const whole = await measured.exportTuning();
  measured.destroy();
  if (whole === null) throw new Error("nothing was measured");
  const old = { ...whole, variants: { embed: [{ when: null, variant: "embed_many" }] }, steps: null };
  const time = vi.spyOn(Runner.prototype, "time").mockClear();
  const notes = new MemoryNotes();
  const engine = await load(lettersBundle({ tuning: [old] }), { notes, tuning: true, ...ROOM });
  const record = await engine.exportTuning();
  expect(record).toMatchObject({ variants: old.variants, steps: { chunk: engine.info.prefillChunk } });
  expect(time).not.toHaveBeenCalled();
  engine.destroy();
  // Without tuning, the first chunk remains.
  const plain = await load(lettersBundle({ tuning: [old] }), ROOM);
  expect(await plain.exportTuning()).toEqual(old);
  expect(plain.info.prefillChunk).toBe(64);
  plain.destroy();
});

withGpu("a chunk that an application sets is used, and none is measured", async () => {
  const engine = await load(lettersBundle(), { tuning: true, prefillChunk: 100, ...ROOM });
  expect((await engine.exportTuning())?.steps?.chunk).toBe(null);
  expect(engine.info.prefillChunk).toBe(100);
  expect(await answer(engine)).toEqual(RIGHT);
  engine.destroy();
  await expect(load(lettersBundle(), { prefillChunk: 0 })).rejects.toThrow("prefillChunk");
});

withGpu("without tuning there is no record", async () => {
  const engine = await load(bundleOf(SLOW_FIRST));
  expect(await engine.exportTuning()).toBe(null);
  engine.destroy();
});

withGpu("an engine that is destroyed stops tuning, and answers come while it works", async () => {
  const engine = await load(bundleOf(SLOW_FIRST), { tuning: true });
  expect(await answer(engine)).toEqual(RIGHT);
  engine.destroy();
  expect(await engine.exportTuning()).toBe(null);
});

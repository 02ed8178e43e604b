// Self-tests on a device whose variants are wrong.

import { createHash } from "node:crypto";

import { expect, vi } from "vitest";

import type { Engine, LoadOptions, Notes, SelfTestInfo } from "../../src/index.js";
import type { Manifest, VariantEntry } from "../../src/runtime/manifest.js";
import { oneOf } from "../exhaustive.js";
import type { LettersBundle } from "../letters_bundle.js";
import { bytesOf, lettersBundle, SELF_TEST } from "../letters_bundle.js";
import { VECTOR_TEST, vectorLetters } from "../vector_letters.js";
import { MemoryNotes } from "./memory_notes.js";
import { answer, bundleOf, gpu, load, RIGHT, row, withGpu, withReportedTimes } from "./trusted_letters.js";

withReportedTimes();

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

withGpu.each(
  oneOf<[string, readonly VariantEntry[]]>(3, [
    ["the first choice", [row("embed_wrong"), row("embed_many")]],
    ["the first choice for few tokens", [row("embed_wrong", { when: ["<=", "S", 4] }), row("embed_many")]],
    ["the last row", [row("embed_few", { when: ["<=", "S", 4] }), row("embed_wrong")]],
    [
      "what would run by itself, for few tokens and for many,",
      [row("embed_wrong", { when: ["<=", "S", 4] }), row("embed_wrong"), row("embed_many")],
    ],
  ]),
)("%s that is wrong is switched off, and answers are right", async (_, embed) => {
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

withGpu.each(oneOf(2, [true, false]))(
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

withGpu("a probe's fit decides which dtype is tried first, and its chunk begins prompts", async () => {
  const fit = { activation: "float32", prefill_chunk: 128, memory_budget: null } as const;
  for (const [half, full, activation, prefillChunk] of [
    ["embed_many", "embed_few", "float32", 128],
    // It was wrong about this device's float32.
    ["embed_many", "embed_wrong", "float16", 128],
  ] as const) {
    const bundle = bundleOf([row(half, HALF), row(full, FULL)], { ...BOTH, context: 256 });
    const engine = await load(bundle, { fit, pages: 4000 });
    expect(engine.info).toMatchObject({ activation, prefillChunk });
    expect(await answer(engine)).toEqual(RIGHT);
    engine.destroy();
  }
});

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

// The float16 rows below are refused, too.
withGpu.each(
  oneOf<[string, readonly VariantEntry[]]>(2, [
    ["computes all integer products wrongly", [row("embed_wrong", DOTS), row("embed_nan", DOTS)]],
    ["refuses all integer products", [row("embed_refused", DOTS)]],
  ]),
)("a device that %s gets the next dtype, although the other rows of int8 are right", async (_, products) => {
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

import { expect, test } from "vitest";

import { Engine } from "../../src/engine.js";
import { BundleError, DeviceError } from "../../src/errors.js";
import type { OnnxOptions } from "../../src/onnx/options.js";
import type { Source } from "../../src/runtime/source.js";
import { dawn } from "../../tools/dawn.js";
import { lettersBundle, memorySource } from "../letters_bundle.js";
import { VISION } from "../seeing_letters.js";
import { lettersOnnx, stubRuntime } from "./letters_onnx.js";

const webgpu = memorySource(lettersBundle().files);
const { files, manifest } = lettersOnnx();
const onnxBundle = memorySource(files);
const noAdapter = { requestAdapter: () => Promise.resolve(null) } as unknown as GPU;

function stub(): { readonly onnx: OnnxOptions; readonly log: ReturnType<typeof stubRuntime>["log"] } {
  const { ort, log } = stubRuntime();
  return { onnx: { runtime: () => Promise.resolve({ default: ort }) }, log };
}

/** A source, and the files that were requested from it. */
function watched(source: Source): { readonly source: Source; readonly requested: string[] } {
  const requested: string[] = [];
  return {
    requested,
    source: { location: source.location, open: (file, signal) => (requested.push(file), source.open(file, signal)) },
  };
}

test("without WebGPU the ONNX bundle runs, and info states which and why", async () => {
  const { onnx, log } = stub();
  const first = watched(webgpu);
  const second = watched(onnxBundle);
  const engine = await Engine.load([first.source, second.source], { gpu: noAdapter, onnx });
  expect(engine.info).toMatchObject({
    target: "onnx",
    adapter: "ONNX Runtime 0",
    model: "letters",
    kernels: null,
    selfTest: { state: "untested" },
  });
  expect(engine.info.reason).toMatch(/^no bundle for WebGPU runs here; This browser has no WebGPU adapter/);
  const ids: number[] = [];
  for await (const { tokenId } of engine.generateTokens({ promptIds: [1, 2], maxTokens: 3 })) ids.push(tokenId);
  expect(ids.length).toBeGreaterThan(0);
  // Only the manifest of the first bundle is downloaded, and of the second one no files of other tools.
  expect(first.requested).toEqual(["manifest.json"]);
  expect(second.requested.sort()).toEqual([
    "manifest.json",
    "onnx/model.onnx",
    "onnx/model.onnx_data",
    "tokenizer.json",
  ]);
  expect(log.created[0]?.options.externalData?.map(({ path }) => path)).toEqual(["model.onnx_data"]);
  engine.destroy();
  await expect.poll(() => log.released).toBe(1);
});

const gpu = dawn();
const hasAdapter = (await gpu.requestAdapter()) !== null;
if (!hasAdapter && process.env.CI !== undefined)
  throw new Error("Dawn finds no adapter (CI is set, so this is not skipped)");

test.runIf(hasAdapter)(
  "a device with WebGPU runs the WebGPU bundle; if it computes wrongly, the ONNX bundle runs",
  async () => {
    const { onnx, log } = stub();
    const right = await Engine.load([onnxBundle, webgpu], { gpu, onnx });
    expect(right.info).toMatchObject({ target: "webgpu", reason: "this device runs it through WebGPU" });
    expect(log.created).toEqual([]);
    right.destroy();
    const { self_test: selfTest } = lettersBundle().manifest;
    const rows = (selfTest?.rows ?? []).map((row) => ({ ...row, logits: row.logits.map((logit) => logit + 5) }));
    const wrong = memorySource(lettersBundle({ self_test: selfTest === null ? null : { ...selfTest, rows } }).files);
    const other = await Engine.load([wrong, onnxBundle], { gpu, onnx, selfTest: "always" });
    expect(other.info.target).toBe("onnx");
    expect(other.info.reason).toContain("this device computes the model wrongly");
  },
);

test("the order of the bundles does not matter, and alone an ONNX bundle needs no reason", async () => {
  const { onnx } = stub();
  expect((await Engine.load([onnxBundle, webgpu], { gpu: noAdapter, onnx })).info.target).toBe("onnx");
  expect((await Engine.load(onnxBundle, { onnx })).info.reason).toBe("it is the only bundle given");
  expect((await Engine.load([onnxBundle, onnxBundle], { onnx })).info.reason).toBe("no bundle for WebGPU was given");
});

test("if no bundle runs, the error states the reason for each", async () => {
  const loading = Engine.load([webgpu, onnxBundle], { gpu: noAdapter });
  await expect(loading).rejects.toThrow(
    /^None of the 2 bundles runs here: This browser has no WebGPU adapter.*no ONNX Runtime was given/,
  );
  await expect(loading).rejects.toBeInstanceOf(DeviceError);
});

test("a damaged bundle is not replaced by another one", async () => {
  const damaged = memorySource({ ...files, "onnx/model.onnx_data": new Uint8Array(7) });
  await expect(Engine.load([damaged, onnxBundle], { onnx: stub().onnx })).rejects.toBeInstanceOf(BundleError);
});

test("a module that is not ONNX Runtime, or cannot be loaded, is an error that names it", async () => {
  await expect(Engine.load(onnxBundle, { onnx: { runtime: () => Promise.resolve({}) } })).rejects.toThrow(
    "it has no InferenceSession",
  );
  const gone = (): Promise<never> => Promise.reject(new Error("not found"));
  await expect(Engine.load(onnxBundle, { onnx: { runtime: gone } })).rejects.toThrow(
    "ONNX Runtime cannot be loaded (not found)",
  );
});

test("a graph for another device is refused, and so are weights that WebAssembly cannot hold", async () => {
  const { ort } = stubRuntime();
  const load = (changes: Parameters<typeof lettersOnnx>[0], versions: object): Promise<Engine> =>
    Engine.load(memorySource(lettersOnnx(changes).files), {
      onnx: { runtime: () => Promise.resolve({ ...ort, env: { versions } }) },
    });
  await expect(load({ device: "cuda" }, {})).rejects.toThrow("its graph is made for cuda");
  const states = { taps: 3, conv_bias: false, bias: false, heads: 0, groups: 0, key_dim: 0, value_dim: 0 };
  const recurrent = { ...manifest.spec, states: { ...states, norm: "none", norm_groups: 1 } as const };
  await expect(load({ spec: recurrent }, {})).rejects.toThrow("keep states, which this runner");
  await expect(load({ spec: { ...manifest.spec, vision: VISION } }, {})).rejects.toThrow(
    "sees pictures, which this runner",
  );
  const frames = { mel_bins: 8, frame_samples: 400, hop_samples: 160, frames_of_row: 2, row_elements: 32 };
  const layers = { hidden_size: 8, num_layers: 1, num_heads: 1, head_dim: 8, intermediate_size: 8 };
  const audio = {
    ...frames,
    ...layers,
    positions: 4,
    rows_behind: 0,
    rows_back: [],
    rows_ahead: [],
    receptive_field: null,
  };
  await expect(load({ spec: { ...manifest.spec, audio } }, {})).rejects.toThrow("reads sound, which this runner");
  const large = manifest.files.map((entry) => (entry.file.endsWith("_data") ? { ...entry, size: 5e9 } : entry));
  await expect(load({ files: large }, { web: "1" })).rejects.toThrow("WebAssembly's memory holds 4.29 GB");
});

test.each([
  [new Error("std::bad_alloc"), "there is not enough memory for the model's 12 B"],
  // In WebAssembly, the address of an exception.
  [1234567, "there is not enough memory"],
  [new Error("no such operator"), "use the ONNX Runtime of this package's release"],
])("a session that cannot be made (%s) is a DeviceError with advice", async (thrown, advice) => {
  const { ort } = stubRuntime();
  // oxlint-disable-next-line typescript/prefer-promise-reject-errors
  const InferenceSession = { create: () => Promise.reject(thrown) };
  const loading = Engine.load(onnxBundle, { onnx: { runtime: () => Promise.resolve({ ...ort, InferenceSession }) } });
  await expect(loading).rejects.toThrow(advice);
  await expect(loading).rejects.toBeInstanceOf(DeviceError);
});

test("the memory plan is for the longest sequence, and a budget makes the sequence shorter", async () => {
  const whole = await Engine.plan(onnxBundle, { maxSequences: 2 });
  expect(whole).toMatchObject({ pages: 3, context: manifest.context, fits: true, keyValueBytes: 3 * whole.pageBytes });
  const small = await Engine.plan(onnxBundle, {
    maxSequences: 2,
    memoryBudget: whole.weightBytes + whole.workingBytes + whole.pageBytes / 2,
  });
  expect(small).toMatchObject({ pages: 1, context: manifest.context / 2, fits: false });
  await expect(Engine.plan(onnxBundle, { memoryBudget: 10 })).rejects.toThrow("the budget is 10 B");
});

test("a load that is aborted ends with its reason", async () => {
  const controller = new AbortController();
  const loading = Engine.load(onnxBundle, {
    onnx: stub().onnx,
    signal: controller.signal,
    onProgress: ({ phase }) => {
      if (phase === "download") controller.abort();
    },
  });
  await expect(loading).rejects.toHaveProperty("name", "AbortError");
});

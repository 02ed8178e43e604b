// Runs the complete measurement of a bundle, reports each step as it starts, and returns the result as an object for
// JSON.

import { httpSource } from "../src/index.js";
import type { Agreement, Expected } from "./agreement.js";
import { measureAgreement } from "./agreement.js";
import type { BundleFacts } from "./bundle_facts.js";
import type { CallCounts } from "./count_calls.js";
import { countCalls } from "./count_calls.js";
import { runsOnCpu } from "../src/runtime/cpu_adapter.js";
import type { DecodeRow, PrefillRow } from "./measure.js";
import { measureCounts, measureDecode, measurePrefill } from "./measure.js";
import type { LoadProgress, Model } from "./model.js";
import { freshSource, openModel } from "./model.js";

export const STEPS = {
  cold: "Load everything over the network",
  warm: "Load again",
  prefill: "Read prompts",
  decode: "Write answers",
  counts: "Count the calls of a token",
  agreement: "Compare with the reference",
} as const;

export type Step = keyof typeof STEPS;

export type Depth = "quick" | "thorough";

interface Plan {
  readonly prefill: readonly number[];
  readonly runs: number;
  readonly decode: readonly number[];
  readonly tokens: number;
}

const PLANS: Readonly<Record<Depth, Plan>> = {
  quick: { prefill: [16, 64, 256], runs: 2, decode: [16, 256], tokens: 32 },
  thorough: { prefill: [16, 64, 256, 1024, 4096], runs: 5, decode: [16, 1024, 4096], tokens: 128 },
};
// The engine submits up to 8 steps ahead, so that the last 8 tokens of an answer make no calls: far from half of them.
const COUNTED_TOKENS = 33;

/** The times of a load. ``upload_ms`` is the host time of writing the weights, which overlaps the other phases. */
export interface LoadTimes {
  readonly total_ms: number;
  readonly manifest_ms: number;
  readonly download_ms: number;
  readonly compile_ms: number;
  readonly upload_ms: number;
  readonly bytes: number;
}

/** ``runs_on_cpu``: whether WebGPU runs without a GPU, so that the times do not apply to any GPU. */
export interface DeviceFacts {
  readonly adapter: string;
  readonly vendor: string;
  readonly architecture: string;
  readonly runs_on_cpu: boolean;
  readonly activation: string;
  readonly features: readonly string[];
  readonly user_agent: string;
}

export interface BenchResult {
  readonly format: "nearfar-bench-1";
  readonly date: string;
  readonly depth: Depth;
  readonly bundle: {
    readonly model: string;
    readonly quantization: string;
    readonly parameters: number;
    readonly context: number;
    readonly bytes: number;
  };
  readonly device: DeviceFacts;
  readonly load: { readonly cold: LoadTimes; readonly warm: LoadTimes };
  /** The number of tokens of prompts in a step, as the device chose it. */
  readonly prefill_chunk: number;
  readonly prefill: readonly PrefillRow[];
  readonly decode: readonly DecodeRow[];
  readonly per_token: CallCounts | null;
  /** ``buffers`` is the size of all WebGPU buffers of the page, as counted. */
  readonly memory_bytes: {
    readonly weights: number;
    readonly keys_and_values: number;
    readonly total: number;
    readonly buffers: number;
  };
  readonly agreement: Agreement;
  readonly self_test: string | null;
}

/** Throws NearfarError, or the signal's reason. */
export async function runBench(
  bundle: string,
  facts: BundleFacts,
  depth: Depth,
  signal: AbortSignal,
  onStep: (step: Step) => void,
): Promise<BenchResult> {
  const plan = PLANS[depth];
  onStep("cold");
  const cold = await timedLoad(bundle, true, signal);
  cold.model.close();
  onStep("warm");
  const { model, times: warm, bufferBytes } = await timedLoad(bundle, false, signal);
  try {
    // Otherwise the tuner would measure between the runs, and change what runs.
    await model.engine.exportTuning();
    // The first forward pass includes one-time work.
    await measurePrefill(model, facts, [8], 1, signal);
    onStep("prefill");
    const prefill = await measurePrefill(model, facts, plan.prefill, plan.runs, signal);
    onStep("decode");
    const decode = await measureDecode(model, facts, plan.decode, plan.tokens, signal);
    onStep("counts");
    const per_token = await countTokens(model, facts, signal);
    onStep("agreement");
    const expected = facts.selfTest === null ? await fetchExpected(bundle, signal) : null;
    const agreement = await measureAgreement(model, facts, model.info.activation, expected, signal);
    const { weightBytes, stateBytes, totalBytes, prefillChunk, selfTest } = model.info;
    return {
      format: "nearfar-bench-1",
      date: new Date().toISOString(),
      depth,
      bundle: {
        model: facts.model,
        quantization: facts.quantization,
        parameters: facts.parameters,
        context: facts.context,
        bytes: facts.downloadBytes,
      },
      device: await deviceFacts(model),
      load: { cold: cold.times, warm },
      prefill_chunk: prefillChunk,
      prefill,
      decode,
      per_token,
      memory_bytes: { weights: weightBytes, keys_and_values: stateBytes, total: totalBytes, buffers: bufferBytes },
      agreement,
      self_test: selfTest.state,
    };
  } finally {
    model.close();
  }
}

/** The median calls of a token. The model must have written tokens before. */
export async function countTokens(model: Model, facts: BundleFacts, signal: AbortSignal): Promise<CallCounts | null> {
  const counter = countCalls();
  try {
    // One-time work is done before the counted answers start.
    await measureCounts(model, facts, counter, 4, signal);
    return await measureCounts(model, facts, counter, COUNTED_TOKENS, signal);
  } finally {
    counter.stop();
  }
}

async function timedLoad(
  bundle: string,
  fresh: boolean,
  signal: AbortSignal,
): Promise<{ model: Model; times: LoadTimes; bufferBytes: number }> {
  const counter = countCalls();
  const start = performance.now();
  const ends = { manifest: 0, download: 0, compile: 0 };
  let bytes = 0;
  const onProgress = ({ phase, loadedBytes, totalBytes, compiledKernels, totalKernels }: LoadProgress): void => {
    const now = performance.now() - start;
    if (phase === "manifest") return;
    bytes = totalBytes;
    if (ends.manifest === 0) ends.manifest = now;
    if (ends.download === 0 && totalBytes > 0 && loadedBytes >= totalBytes) ends.download = now;
    if (ends.compile === 0 && totalKernels > 0 && compiledKernels >= totalKernels) ends.compile = now;
  };
  try {
    const model = await openModel(fresh ? freshSource(bundle) : bundle, { onProgress, signal });
    const { manifest, download, compile } = ends;
    const times = {
      total_ms: performance.now() - start,
      manifest_ms: manifest,
      download_ms: download - manifest,
      compile_ms: compile - manifest,
      upload_ms: counter.writeMs(),
      bytes,
    };
    return { model, times, bufferBytes: counter.bufferBytes() };
  } finally {
    counter.stop();
  }
}

/** Resolves to null if there is no expected.json beside the bundle. */
async function fetchExpected(bundle: string, signal: AbortSignal): Promise<Expected | null> {
  const response = await fetch(new URL("expected.json", httpSource(bundle).location), { signal });
  return response.ok ? ((await response.json()) as Expected) : null;
}

async function deviceFacts({ info }: Model): Promise<DeviceFacts> {
  const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
  return {
    adapter: info.adapter,
    vendor: adapter?.info.vendor ?? "",
    architecture: adapter?.info.architecture ?? "",
    runs_on_cpu: adapter?.info.isFallbackAdapter === true || runsOnCpu(info.adapter),
    activation: info.activation,
    features: [...(adapter?.features ?? [])].sort(),
    user_agent: navigator.userAgent,
  };
}

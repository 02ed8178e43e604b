// Opens the runner of a probe: the probe's few layers, the complete plan on their weights, and the variants that the
// measurements need. It is tested with two runs; only if these fail are the other variants tried, as a load does.

import { DeviceError } from "../errors.js";
import { dimsOf } from "../runtime/batch.js";
import type { Batch } from "../runtime/batch.js";
import { emptyBatch } from "../runtime/batch.js";
import { adapterEntry, chooseActivation, knownFeatures, openDevice } from "../runtime/device.js";
import type { Manifest } from "../runtime/manifest.js";
import type { RunnerLimits } from "../runtime/memory.js";
import { PREFILL_CHUNK, largestBuffer, limitsOf } from "../runtime/memory.js";
import type { Notes } from "../runtime/notes.js";
import { planOf } from "../runtime/plan.js";
import type { RunnerOptions } from "../runtime/runner_parts.js";
import { Runner } from "../runtime/runner.js";
import { rowDeviation } from "../runtime/self_test.js";
import { addText, sequenceBatch } from "../runtime/sequence_batch.js";
import { shippedTuning } from "../runtime/shipped_tuning.js";
import type { Source } from "../runtime/source.js";
import type { ActivationDtype } from "../runtime/variants.js";
import { batchesOf } from "./measure.js";
import { probeSource } from "./planes.js";
import type { DeviceReport, ProbeFile, ReportTime } from "./schema.js";
import { neededVariants, usualSteps, wholePlan } from "./whole.js";

export interface OpenedProbe {
  readonly runner: Runner;
  readonly device: GPUDevice;
  readonly activation: ActivationDtype;
  readonly test: NonNullable<DeviceReport["test"]>;
}

export interface OpenOptions {
  readonly gpu: GPU | undefined;
  readonly adapter: GPUAdapter;
  readonly pages: number;
  /** See `MeasureOptions`. */
  readonly onCpu: boolean;
  readonly signal: AbortSignal;
}

const NOWHERE: Notes = { read: () => Promise.resolve(undefined), write: () => Promise.resolve() };
/** The most texts and tokens in a batch of an encoder. */
const TEXTS = 4;
const TEXT_TOKENS = 512;

/** ``spent`` is called after each step. Throws as `openTrusted`. */
export async function openProbe(
  complete: Manifest,
  small: Manifest,
  file: ProbeFile,
  source: Source,
  { gpu, adapter, pages, onCpu, signal }: OpenOptions,
  spent: (step: ReportTime["step"]) => void,
): Promise<OpenedProbe> {
  const generates = planOf(small).outputs.logits !== undefined;
  const sizes: RunnerOptions = {
    signal,
    prefillChunk: PREFILL_CHUNK,
    maxSequences: generates ? 1 : TEXTS,
    draftTokens: 0,
    stateSnapshots: 0,
    pages,
    maxBatchTokens: TEXT_TOKENS,
  };
  const [[name, plan] = ["", planOf(small)]] = Object.entries(small.plans);
  const probed = usualSteps(plan);
  // A runner runs a second plan as it does that of a sound.
  const both = { ...small, plans: { [name]: probed, audio: wholePlan(complete, file, probed) } };
  const limits = limitsOf(both, sizes);
  const known = new Set([...knownFeatures(adapter, gpu), `vendor-${adapter.info.vendor}`]);
  const activation = chooseActivation(both, known);
  const front = shippedTuning(both.tuning, { activation, adapterEntry: adapterEntry(adapter.info) })?.variants ?? {};
  const dims = (batches: readonly Batch[]) => {
    const [P = 0, PW = 0] = limits.groups.map((group) => group.pages);
    return batches.map((batch) => dimsOf(batch, { P, PW }, false));
  };
  const needed = neededVariants(
    both,
    activation,
    known,
    { off: new Set(), front },
    dims(batchesOf(limits, onCpu)),
    dims(testBatches(both, limits)),
  );
  const made = probeSource(source, file);
  const choices = { off: new Set<string>(), front };
  const device = await openDevice(both, { gpu, adapter }, (dtype) => largestBuffer(both, dtype, sizes));
  try {
    const runner = await Runner.create({ manifest: { ...both, variants: needed }, source: made }, device, {
      ...sizes,
      choices,
    });
    spent("compile");
    const deviation = await unlessFailed(runner, () => briefDeviation(runner, limits, signal));
    const tolerances: Readonly<Record<string, number>> = (both.self_test ?? both.vector_test)?.tolerances ?? {};
    if (deviation <= (tolerances[activation] ?? 0)) {
      spent("test");
      const test = { state: "passed", switched_off: [], largest_deviation: deviation } as const;
      return { runner, device: device.device, activation, test };
    }
    runner.destroy();
  } catch (error) {
    if (!(error instanceof DeviceError && "kernel" in error.details)) throw error;
  }
  // This device computes some variants wrongly, or refuses them: a load would use others, which it searches for.
  const { openTrusted } = await import("../runtime/index.js");
  const trust = { gpu, tuning: false, selfTest: "always", notes: NOWHERE } as const;
  const found = await openTrusted({ manifest: both, source: made }, trust, sizes, () => undefined);
  spent("test");
  const { state, switchedOff: switched_off, largestDeviation: largest_deviation } = found.selfTest;
  return {
    runner: found.runner,
    device: found.device.device,
    activation: found.device.activation,
    test: { state, switched_off, largest_deviation },
  };
}

async function unlessFailed<T>(runner: Runner, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    runner.destroy();
    throw error;
  }
}

/** The batches of the test: a prompt and its last token, or texts. */
function testBatches(manifest: Manifest, limits: RunnerLimits): readonly Batch[] {
  const { self_test: prompt, vector_test: vectors, page_size: pageSize } = manifest;
  const chunk = (ids: readonly number[], start: number): Batch => {
    const all = Array.from({ length: Math.ceil((start + ids.length) / pageSize) }, (_, page) => page);
    return sequenceBatch(
      ids,
      start,
      limits.groups.map(() => all),
      pageSize,
      true,
    );
  };
  const ids = prompt?.prompt_ids;
  if (ids !== undefined) return [chunk(ids.slice(0, -1), 0), chunk(ids.slice(-1), ids.length - 1)];
  const texts = vectors?.texts ?? [];
  if (limits.splitsTexts !== false) return texts.map((text) => chunk(text, 0));
  const together = emptyBatch();
  for (const text of texts) addText(together, text);
  return [together];
}

/** The largest error, relative to the largest result: of a prompt and of a token behind it, or of texts. */
async function briefDeviation(runner: Runner, limits: RunnerLimits, signal: AbortSignal): Promise<number> {
  const { manifest } = runner;
  const { self_test: test, vector_test: vectors, classifier } = manifest;
  const scale = Math.max(...(test?.rows.flatMap(({ logits }) => logits.map(Math.abs)) ?? []));
  const rows: Float32Array[] = [];
  let worst = 0;
  for (const batch of testBatches(manifest, limits)) {
    signal.throwIfAborted();
    if (test !== null) {
      const logits = await runner.forwardLogits(batch);
      const row = test.rows.find((each) => each.row === batch.positions.at(-1));
      if (row !== undefined) worst = Math.max(worst, rowDeviation(logits, row) / scale);
    } else {
      const results = await runner.encode(batch);
      const count = classifier?.per_token === true ? batch.token_ids.length : batch.seq_starts.length - 1;
      const size = results.length / count;
      for (let row = 0; row < count; row++) rows.push(results.subarray(row * size, (row + 1) * size));
    }
  }
  const longest = Math.max(...(vectors?.rows.map(({ values }) => Math.hypot(...values)) ?? []));
  for (const { row, elements, values } of vectors?.rows ?? []) {
    const error = Math.hypot(
      ...elements.map((element, index) => (rows[row]?.[element] ?? NaN) - (values[index] ?? NaN)),
    );
    worst = Math.max(worst, Number.isNaN(error) ? Infinity : error / longest);
  }
  return worst;
}

// Measures a bundle on Dawn in Node, after tuning, and prints JSON: the tokens per second of prefill and decode, and the
// bytes per second that decode reads, relative to the copy bandwidth of the device's memory. With --chunks it measures
// the prefill only, with each of these chunks instead of the one that the device chooses.
//
//     node dist/tools/bench_gpu.js BUNDLE [--tokens 128] [--lengths 128,2048,8192] [--copy-mib 256] [--any-adapter]
//         [--chunks 64,128,256,512]

import { parseArgs } from "node:util";

import { globals } from "webgpu";

import { bundleFacts } from "../page/bundle_facts.js";
import { runsOnCpu } from "../src/runtime/cpu_adapter.js";
import type { WebGPUClasses } from "../page/count_calls.js";
import { countCalls, median } from "../page/count_calls.js";
import type { PrefillRow, Sizes } from "../page/measure.js";
import { measureDecode, measurePrefill } from "../page/measure.js";
import { openModel } from "../page/model.js";
import { DeviceError, NearfarError } from "../src/errors.js";
import { openBundle } from "../src/runtime/bundle.js";
import { BUFFER_USAGE } from "../src/runtime/gpu_flags.js";
import type { Source } from "../src/runtime/source.js";
import { dawnForGpu } from "./dawn.js";
import { folderSource } from "./folder_source.js";

const USAGE =
  "usage: bench_gpu BUNDLE [--tokens 128] [--lengths 128,2048,8192] [--copy-mib 256] [--any-adapter] [--chunks 64,128]";
const PREFILL_RUNS = 3;
const COPIES = 16;
const COPY_RUNS = 5;

async function main(): Promise<void> {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      tokens: { type: "string", default: "128" },
      lengths: { type: "string", default: "128,2048,8192" },
      "copy-mib": { type: "string", default: "256" },
      "any-adapter": { type: "boolean", default: false },
      chunks: { type: "string" },
    },
  });
  const [folder] = positionals;
  if (folder === undefined) throw new Error(USAGE);
  const gpu = dawnForGpu();
  await requireGpu(gpu, values["any-adapter"]);
  const copyBytesPerSecond = await copyBandwidth(gpu, Number(values["copy-mib"]) * 2 ** 20);
  const { signal } = new AbortController();
  const source = folderSource(folder);
  const facts = bundleFacts((await openBundle(source, signal)).manifest);
  const lengths = values.lengths.split(",").map(Number);
  if (values.chunks !== undefined) {
    const chunks = values.chunks.split(",").map(Number);
    console.log(JSON.stringify(await measureChunks(source, gpu, facts, lengths, chunks, signal)));
    return;
  }
  const model = await openModel(source, { gpu });
  // Otherwise the tuner would measure variants between the runs, and exchange them.
  const start = performance.now();
  const tuning = await model.engine.exportTuning();
  const tuningSeconds = (performance.now() - start) / 1000;
  // The first forward creates resources that later ones reuse.
  await measureDecode(model, facts, [8], 4, signal);
  const prefill = await measurePrefill(model, facts, lengths, PREFILL_RUNS, signal);
  const decode = await measureDecode(model, facts, lengths, Number(values.tokens), signal);
  const { adapter, activation, weightBytes, stateBytes, context, prefillChunk } = model.info;
  const rows = decode.map(({ prompt_tokens, tokens, tokens_per_second }) => {
    // A token reads all weights, because the embedding is also the output matrix, and the keys and values of the tokens
    // before it.
    const bytes = weightBytes + (stateBytes / context) * (prompt_tokens + tokens / 2);
    const bytesPerSecond = bytes * tokens_per_second;
    return {
      prompt_tokens,
      tokens,
      tokens_per_second,
      bytes_per_second: bytesPerSecond,
      of_copy_bandwidth: bytesPerSecond / copyBytesPerSecond,
    };
  });
  model.close();
  const { model: name, quantization } = facts;
  console.log(
    JSON.stringify({
      model: name,
      quantization,
      adapter,
      activation,
      weight_bytes: weightBytes,
      copy_bytes_per_second: copyBytesPerSecond,
      tuning_seconds: tuningSeconds,
      tuned_variants: tuning?.variants ?? null,
      prefill_chunk: prefillChunk,
      prefill,
      decode: rows,
    }),
  );
}

interface ChunkRow {
  readonly chunk: number;
  /** The dispatches of a prompt of each length. */
  readonly dispatches: readonly number[];
  readonly total_bytes: number;
  readonly prefill: readonly PrefillRow[];
}

/** The prefill with each chunk, on a device of its own. The runs take turns, so that other work slows all of them. */
async function measureChunks(
  source: Source,
  gpu: GPU,
  sizes: Sizes,
  lengths: readonly number[],
  chunks: readonly number[],
  signal: AbortSignal,
): Promise<readonly ChunkRow[]> {
  const counter = countCalls(globals as unknown as WebGPUClasses);
  const models = [];
  for (const prefillChunk of chunks) models.push(await openModel(source, { gpu, prefillChunk, tuning: false }));
  const dispatches: number[][] = [];
  for (const model of models) {
    await measurePrefill(model, sizes, [8], 1, signal);
    const own: number[] = [];
    for (const length of lengths) {
      const before = counter.read().dispatches;
      await measurePrefill(model, sizes, [length], 1, signal);
      own.push(counter.read().dispatches - before);
    }
    dispatches.push(own);
  }
  counter.stop();
  const rounds: PrefillRow[][][] = models.map(() => []);
  for (let round = 0; round < PREFILL_RUNS; round++)
    for (const [index, model] of models.entries())
      // Each run has prompts of its own, which the prefix cache does not have.
      rounds[index]?.push(await measurePrefill(model, sizes, lengths, 1, signal, 1 + round));
  return models.map((model, index) => {
    const { prefillChunk: chunk, totalBytes: total_bytes } = model.info;
    model.close();
    const rows = rounds[index] ?? [];
    const prefill = lengths.map((length, at) => {
      const ms = median(rows.map((row) => row[at]?.time_to_first_token_ms ?? NaN));
      return { prompt_tokens: length, time_to_first_token_ms: ms, tokens_per_second: (1000 * length) / ms };
    });
    return { chunk, dispatches: dispatches[index] ?? [], total_bytes, prefill };
  });
}

/** Throws DeviceError if there is no GPU, unless ``anyAdapter`` is true. */
async function requireGpu(gpu: GPU, anyAdapter: boolean): Promise<void> {
  const adapter = await gpu.requestAdapter({ powerPreference: "high-performance" });
  if (adapter === null) throw new DeviceError("Dawn finds no WebGPU adapter; install the GPU's Vulkan driver");
  const { description, vendor, architecture, device } = adapter.info;
  const name = [description, vendor, architecture, device].join(" ").trim();
  if (!anyAdapter && (adapter.info.isFallbackAdapter || runsOnCpu(name))) {
    throw new DeviceError(
      `The adapter ${name} computes on the CPU, whose times do not apply to a GPU; pass --any-adapter to run anyway`,
    );
  }
}

/** The bytes that copies from buffer to buffer read and write per second: the best of several runs. */
async function copyBandwidth(gpu: GPU, size: number): Promise<number> {
  const adapter = await gpu.requestAdapter({ powerPreference: "high-performance" });
  if (adapter === null) throw new DeviceError("Dawn finds no WebGPU adapter; install the GPU's Vulkan driver");
  const device = await adapter.requestDevice();
  const usage = BUFFER_USAGE.COPY_SRC | BUFFER_USAGE.COPY_DST;
  const [from, to] = [device.createBuffer({ size, usage }), device.createBuffer({ size, usage })];
  let best = 0;
  for (let run = 0; run < COPY_RUNS; run++) {
    const encoder = device.createCommandEncoder();
    for (let copy = 0; copy < COPIES; copy++) encoder.copyBufferToBuffer(from, 0, to, 0, size);
    const start = performance.now();
    device.queue.submit([encoder.finish()]);
    await device.queue.onSubmittedWorkDone();
    best = Math.max(best, (2 * size * COPIES * 1000) / (performance.now() - start));
  }
  from.destroy();
  to.destroy();
  device.destroy();
  return best;
}

main().then(
  // Dawn's threads would keep the process alive.
  () => process.exit(0),
  (error: unknown) => {
    console.error(error instanceof NearfarError ? error.message : error);
    process.exit(1);
  },
);

// Measures a bundle on Dawn in Node, after tuning, and prints JSON: the tokens per second of prefill and decode, and the
// bytes per second that decode reads, relative to the copy bandwidth of the device's memory.
//
//     node dist/tools/bench_gpu.js BUNDLE [--tokens 128] [--lengths 128,2048,8192] [--copy-mib 256] [--any-adapter]

import { parseArgs } from "node:util";

import { bundleFacts } from "../page/bundle_facts.js";
import { runsOnCpu } from "../page/cpu_adapter.js";
import { measureDecode, measurePrefill } from "../page/measure.js";
import { openModel } from "../page/model.js";
import { DeviceError, NearfarError } from "../src/errors.js";
import { openBundle } from "../src/runtime/bundle.js";
import { BUFFER_USAGE } from "../src/runtime/gpu_flags.js";
import { dawnForGpu } from "./dawn.js";
import { folderSource } from "./folder_source.js";

const USAGE = "usage: bench_gpu BUNDLE [--tokens 128] [--lengths 128,2048,8192] [--copy-mib 256] [--any-adapter]";
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
  const model = await openModel(source, { gpu });
  // Otherwise the tuner would measure variants between the runs, and exchange them.
  const start = performance.now();
  const tuning = await model.engine.exportTuning();
  const tuningSeconds = (performance.now() - start) / 1000;
  const lengths = values.lengths.split(",").map(Number);
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

// Times kernels on Dawn, Chrome's WebGPU, in Node: node bench_kernels.mjs REQUEST.json ANSWER.json
//
// The request has cases: code, entry, needs, the bindings' sizes in bytes, uniforms and grid. Bindings that are "cold"
// have as many copies as fill coldBytes, and dispatches use them in turn. The answer contains the adapter's name, its
// copy speed, and the seconds of one dispatch of each case, null if the device lacks what the kernel needs.

import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(new URL("../../web/package.json", import.meta.url));
const { create, globals } = require("webgpu");
Object.assign(globalThis, globals);

const { cases, coldBytes, milliseconds } = JSON.parse(readFileSync(process.argv[2], "utf8"));
const gpu = create([]);
const adapter = await gpu.requestAdapter({ powerPreference: "high-performance" });
if (adapter === null) throw new Error("Dawn finds no adapter; install a GPU driver with Vulkan, Metal or Direct3D 12");
const features = ["shader-f16", "subgroups"].filter((feature) => adapter.features.has(feature));
const known = new Set([...features, ...gpu.wgslLanguageFeatures]);
const { maxBufferSize, maxStorageBufferBindingSize } = adapter.limits;
const device = await adapter.requestDevice({
  requiredFeatures: features,
  requiredLimits: { maxBufferSize, maxStorageBufferBindingSize },
});
device.onuncapturederror = ({ error }) => {
  console.error(error.message);
  process.exit(1);
};

// As codes, float16 or float32, these are ordinary numbers: none is zero, infinite or subnormal.
const noise = Uint32Array.from({ length: 1 << 16 }, () => ((Math.random() * 2 ** 32) & 0x03ff03ff) | 0x3c003c00);

function storage(size) {
  const buffer = device.createBuffer({
    size,
    usage: GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST,
  });
  for (let offset = 0; offset < size; offset += noise.byteLength) {
    device.queue.writeBuffer(buffer, offset, noise, 0, Math.min(noise.byteLength, size - offset) / 4);
  }
  return buffer;
}

/**
 * Seconds of one of the commands that ``encode(encoder, count)`` encodes: many in one submit, the fastest of five tries.
 */
async function time(encode) {
  const submit = async (count) => {
    const encoder = device.createCommandEncoder();
    encode(encoder, count);
    const commands = encoder.finish();
    const start = performance.now();
    device.queue.submit([commands]);
    await device.queue.onSubmittedWorkDone();
    return performance.now() - start;
  };
  await submit(1);
  let count = 1;
  while (count < 1 << 14 && (await submit(count)) < milliseconds) count *= 2;
  let [best, idle] = [Infinity, Infinity];
  for (let i = 0; i < 5; i++) {
    idle = Math.min(idle, await submit(0));
    best = Math.min(best, await submit(count));
  }
  // On a busy machine an empty submit may take longer than a full one.
  return Math.max(best - idle, best / 2) / 1000 / count;
}

async function copySpeed() {
  const size = Math.min(coldBytes, maxBufferSize);
  const [from, to] = [storage(size), storage(size)];
  const seconds = await time((encoder, count) => {
    for (let i = 0; i < count; i++) encoder.copyBufferToBuffer(from, 0, to, 0, size);
  });
  from.destroy();
  to.destroy();
  return (2 * size) / seconds;
}

async function run({ code, entry, bindings, uniforms, grid }) {
  const pipeline = await device.createComputePipelineAsync({
    layout: "auto",
    compute: { module: device.createShaderModule({ code }), entryPoint: entry },
  });
  const cold = bindings.reduce((sum, binding) => sum + (binding.cold ? binding.size : 0), 0);
  const copies = Math.max(1, Math.ceil(coldBytes / cold));
  const warm = bindings.map(({ size, cold: isCold }) => (isCold ? null : storage(size)));
  const uniform = device.createBuffer({
    size: Math.ceil(uniforms.length / 4) * 16,
    usage: GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST,
  });
  device.queue.writeBuffer(uniform, 0, Int32Array.from(uniforms));
  const buffers = Array.from({ length: copies }, () => bindings.map(({ size }, i) => warm[i] ?? storage(size)));
  const groups = buffers.map((each) =>
    device.createBindGroup({
      layout: pipeline.getBindGroupLayout(0),
      entries: [...each, uniform].map((buffer, binding) => ({ binding, resource: { buffer } })),
    }),
  );
  const seconds = await time((encoder, count) => {
    const pass = encoder.beginComputePass();
    pass.setPipeline(pipeline);
    for (let i = 0; i < count; i++) {
      pass.setBindGroup(0, groups[i % copies]);
      pass.dispatchWorkgroups(...grid);
    }
    pass.end();
  });
  for (const buffer of new Set(buffers.flat())) buffer.destroy();
  uniform.destroy();
  return seconds;
}

const { vendor, architecture, device: model, description } = adapter.info;
const copyBytesPerSecond = await copySpeed();
const seconds = [];
for (const each of cases) seconds.push(each.needs.every((need) => known.has(need)) ? await run(each) : null);
writeFileSync(
  process.argv[3],
  JSON.stringify({
    adapter: [vendor, architecture, model, description].filter(Boolean).join(" "),
    copyBytesPerSecond,
    seconds,
  }),
);
device.destroy();
process.exit(0);

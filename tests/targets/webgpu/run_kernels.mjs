// Runs kernels on Dawn, Chrome's WebGPU, in Node: node run_kernels.mjs REQUEST.json
//
// The request is a list of cases: name, code, entry, access ("read" or "write" of each binding) and runs, each with the bindings' contents
// and the uniforms in base64 and the grid. Printed as JSON: for each name and run, the contents of the written bindings in base64.

import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(new URL("../../../web/package.json", import.meta.url));
const { create, globals } = require("webgpu");
Object.assign(globalThis, globals);

const gpu = create([]);
const adapter = await gpu.requestAdapter();
if (adapter === null) throw new Error("Dawn finds no adapter");
const features = ["shader-f16", "subgroups"].filter((feature) => adapter.features.has(feature));
// No limits are asked for, so the device has WebGPU's defaults and a kernel beyond them fails.
const device = await adapter.requestDevice({ requiredFeatures: features });

function upload(base64, usage) {
  const bytes = Buffer.from(base64, "base64");
  const buffer = device.createBuffer({ size: bytes.length, usage: usage | GPUBufferUsage.COPY_DST });
  device.queue.writeBuffer(buffer, 0, bytes);
  return buffer;
}

async function download(buffer) {
  const copy = device.createBuffer({ size: buffer.size, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
  const encoder = device.createCommandEncoder();
  encoder.copyBufferToBuffer(buffer, 0, copy, 0, buffer.size);
  device.queue.submit([encoder.finish()]);
  await copy.mapAsync(GPUMapMode.READ);
  const base64 = Buffer.from(copy.getMappedRange()).toString("base64");
  copy.destroy();
  return base64;
}

async function run(pipeline, { access }, { contents, uniforms, grid }) {
  const buffers = contents.map((content) => upload(content, GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC));
  buffers.push(upload(uniforms, GPUBufferUsage.UNIFORM));
  const group = device.createBindGroup({
    layout: pipeline.getBindGroupLayout(0),
    entries: buffers.map((buffer, binding) => ({ binding, resource: { buffer } })),
  });
  const encoder = device.createCommandEncoder();
  const pass = encoder.beginComputePass();
  pass.setPipeline(pipeline);
  pass.setBindGroup(0, group);
  pass.dispatchWorkgroups(...grid);
  pass.end();
  device.queue.submit([encoder.finish()]);
  const written = [];
  for (const [i, kind] of access.entries()) if (kind === "write") written.push(await download(buffers[i]));
  for (const buffer of buffers) buffer.destroy();
  return written;
}

const requests = JSON.parse(readFileSync(process.argv[2], "utf8"));
device.pushErrorScope("validation");
// Compiling takes most of the time, and Dawn does it on several threads.
const pipelines = await Promise.all(
  requests.map(({ code, entry }) =>
    device.createComputePipelineAsync({
      layout: "auto",
      compute: { module: device.createShaderModule({ code }), entryPoint: entry },
    }),
  ),
);
const answers = {};
for (const [i, request] of requests.entries()) {
  answers[request.name] = [];
  for (const each of request.runs) answers[request.name].push(await run(pipelines[i], request, each));
}
const error = await device.popErrorScope();
if (error !== null) throw new Error(error.message);
device.destroy();
writeFileSync(1, JSON.stringify(answers));
process.exit(0);

// Runs kernels on Dawn, Chrome's WebGPU, in Node: node run_kernels.mjs REQUEST.json
//
// The request is a list of cases: name, kernels (code and entry), written (numbers of buffers) and runs, each with the buffers' contents in
// base64 and for each kernel its launch: bindings (numbers of buffers), uniforms in base64 and the grid.
// Printed as JSON: for each name and run, the contents of the written buffers in base64.

import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(new URL("../../../web/package.json", import.meta.url));
const { create, globals } = require("webgpu");
Object.assign(globalThis, globals);

// SwiftShader takes most of its time to compile stores that zero workgroup memory; Dawn zeroes it in another way without the extension.
const gpu = create(["disable-dawn-features=use_vulkan_zero_initialize_workgroup_memory_extension"]);
const adapter = await gpu.requestAdapter();
if (adapter === null) throw new Error("Dawn finds no adapter");
const features = ["shader-f16", "subgroups"].filter((feature) => adapter.features.has(feature));
// No limits are requested, so the device has WebGPU's defaults, and a kernel beyond them fails.
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

async function run(pipelines, { written }, { contents, launches }) {
  const buffers = contents.map((content) => upload(content, GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC));
  const allUniforms = [];
  const encoder = device.createCommandEncoder();
  const pass = encoder.beginComputePass();
  for (const [i, { bindings, uniforms, grid }] of launches.entries()) {
    allUniforms.push(upload(uniforms, GPUBufferUsage.UNIFORM));
    const bound = [...bindings.map((number) => buffers[number]), allUniforms[i]];
    pass.setPipeline(pipelines[i]);
    pass.setBindGroup(
      0,
      device.createBindGroup({
        layout: pipelines[i].getBindGroupLayout(0),
        entries: bound.map((buffer, binding) => ({ binding, resource: { buffer } })),
      }),
    );
    // Runtimes skip such dispatches too; Dawn warns about them.
    if (!grid.includes(0)) pass.dispatchWorkgroups(...grid);
  }
  pass.end();
  device.queue.submit([encoder.finish()]);
  const outputs = [];
  for (const number of written) outputs.push(await download(buffers[number]));
  for (const buffer of [...buffers, ...allUniforms]) buffer.destroy();
  return outputs;
}

const requests = JSON.parse(readFileSync(process.argv[2], "utf8"));
device.pushErrorScope("validation");
// Compiling takes most of the time, and Dawn does it on several threads.
const pipelines = await Promise.all(
  requests.map(({ kernels }) =>
    Promise.all(
      kernels.map(({ code, entry }) =>
        device.createComputePipelineAsync({
          layout: "auto",
          compute: { module: device.createShaderModule({ code }), entryPoint: entry },
        }),
      ),
    ),
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

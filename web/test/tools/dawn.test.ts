// The features with which Node's Dawn translates kernels.

import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";

import { transformSync } from "esbuild";
import { expect, test } from "vitest";

import { dawn } from "../../tools/dawn.js";

const hasAdapter = (await dawn().requestAdapter()) !== null;

// Prints the kernel as Vulkan gets it.
const COMPILES = `
  const device = await (await dawn("enable-dawn-features=dump_shaders").requestAdapter()).requestDevice();
  const code = \`
    var<workgroup> tile: array<f32, 64>;
    @group(0) @binding(0) var<storage, read_write> sum: array<f32>;
    @compute @workgroup_size(1) fn main() { tile[1] = 2; workgroupBarrier(); sum[0] = tile[0] + tile[1]; }\`;
  const compute = { module: device.createShaderModule({ code }), entryPoint: "main" };
  await device.createComputePipelineAsync({ layout: "auto", compute });
  process.exit(0);
`;

test.skipIf(!hasAdapter)("a kernel zeroes its workgroup memory in a loop, which SwiftShader compiles fast", () => {
  const { code } = transformSync(readFileSync("tools/dawn.ts", "utf8"), { loader: "ts" });
  const script = ["--input-type=module", "--eval", code + COMPILES];
  const dumped = execFileSync("bash", ["-c", '"$0" "$@" 2>&1', process.execPath, ...script], { encoding: "utf8" });
  const variables = dumped.split("\n").filter((line) => /OpVariable \S+ Workgroup/.test(line));
  expect(variables).not.toEqual([]);
  // An initializer would stand at the end.
  for (const line of variables) expect(line.trimEnd()).toMatch(/ Workgroup$/);
});

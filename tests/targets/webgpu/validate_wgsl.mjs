// Validates WGSL with Tint, Chrome's compiler, on Dawn's null backend, which needs no driver: node validate_wgsl.mjs REQUEST.json
//
// The request is a list of {name, code, entry}. Printed as JSON: the errors of each name, "" for none.

import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(new URL("../../../web/package.json", import.meta.url));
const { create, globals } = require("webgpu");
Object.assign(globalThis, globals);

const gpu = create(["backend=null"]);
const adapter = await gpu.requestAdapter();
const device = await adapter.requestDevice({ requiredFeatures: ["shader-f16", "subgroups"] });

const answers = {};
for (const { name, code, entry } of JSON.parse(readFileSync(process.argv[2], "utf8"))) {
  device.pushErrorScope("validation");
  const module = device.createShaderModule({ code });
  device.createComputePipeline({ layout: "auto", compute: { module, entryPoint: entry } });
  const error = await device.popErrorScope();
  answers[name] = error === null ? "" : error.message;
}
device.destroy();
writeFileSync(1, JSON.stringify(answers));
process.exit(0);

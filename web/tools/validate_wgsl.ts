// Validates every kernel of a bundle with Tint, Chrome's WGSL compiler, without a driver and with all features. Prints
// a line for each kernel that fails.
//
//     node dist/tools/validate_wgsl.js BUNDLE...

import { messageOf } from "../src/errors.js";
import { openBundle } from "../src/runtime/bundle.js";
import { compileKernel } from "../src/runtime/pipelines.js";
import { readFile } from "../src/runtime/read_file.js";
import { dawn } from "./dawn.js";
import { folderSource } from "./folder_source.js";

async function main(folders: readonly string[]): Promise<number> {
  if (folders.length === 0) throw new Error("usage: validate_wgsl BUNDLE...");
  const gpu = dawn("backend=null");
  const { signal } = new AbortController();
  let failures = 0;
  for (const folder of folders) {
    const { manifest, source } = await openBundle(folderSource(folder), signal);
    const needs = [...manifest.activations, ...Object.values(manifest.variants).flat()].flatMap((entry) => entry.needs);
    // An adapter can open only one device.
    const adapter = await gpu.requestAdapter();
    if (adapter === null) throw new Error("Dawn has no null adapter");
    const device = await adapter.requestDevice({
      requiredFeatures: [...new Set(needs)].filter((need) => adapter.features.has(need)) as GPUFeatureName[],
    });
    // The error of a module is also reported by its pipeline.
    device.addEventListener("uncapturederror", (event) => {
      event.preventDefault();
    });
    for (const [name, entry] of Object.entries(manifest.kernels)) {
      try {
        await compileKernel(device, name, entry, new TextDecoder().decode(await readFile(source, entry, signal)));
      } catch (error) {
        failures++;
        console.log(`${folder}/${messageOf(error).replaceAll("\n", " ")}`);
      }
    }
    device.destroy();
  }
  return failures;
}

main(process.argv.slice(2)).then(
  (failures) => process.exit(failures === 0 ? 0 : 1),
  (error: unknown) => {
    console.error(error);
    process.exit(2);
  },
);

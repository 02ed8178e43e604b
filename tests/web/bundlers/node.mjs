import { createReadStream } from "node:fs";
import { Readable } from "node:stream";

import { Engine } from "@nearfar/web";
import { create } from "webgpu";

import { LOAD, ask } from "./ask.js";

// SwiftShader compiles kernels faster without it; see compiler/browser/chromium.py.
const gpu = create(["disable-dawn-features=use_vulkan_zero_initialize_workgroup_memory_extension"]);
const bundle = { location: "bundle", open: async (file) => Readable.toWeb(createReadStream(`out/bundle/${file}`)) };
const engine = await Engine.load(bundle, { ...LOAD, gpu });
console.log(JSON.stringify(await ask(engine)));
engine.destroy();
process.exit(0);

import { readFileSync, readdirSync } from "node:fs";

import { defineConfig } from "vitest/config";

import { xgrammarVite } from "./xgrammar_module.mjs";

// REACT_FOLDER: the hooks' tests run on the React in this folder's node_modules, such as version 18.
const { REACT_FOLDER: reactFolder } = process.env;
const alias =
  reactFolder === undefined
    ? {}
    : { react: `${reactFolder}/node_modules/react`, "react-dom": `${reactFolder}/node_modules/react-dom` };

// Most files of tests share a process and its modules, because importing them again for each file takes longer than most
// tests. Those that run kernels share another one. A file that replaces modules, or changes globals for longer than a test,
// has a process of its own.
const CHANGES_GLOBALS = /vi\.mock|globalThis(?:\.\w+ =|,)|defineProperty|dom\.js|fake_extension/;
const RUNS_KERNELS = /hasAdapter|withGpu/;
const files = readdirSync("test", { recursive: true, encoding: "utf8" })
  .map((file) => `test/${file.replaceAll("\\", "/")}`)
  .filter((file) => file.endsWith(".test.ts"));
const alone = files.filter((file) => CHANGES_GLOBALS.test(readFileSync(file, "utf8")));
const kernels = files.filter((file) => !alone.includes(file) && RUNS_KERNELS.test(readFileSync(file, "utf8")));
const together = files.filter((file) => !alone.includes(file) && !kernels.includes(file));

// SwiftShader takes its time over a pipeline, and a busy machine over anything: limits only end what hangs.
export default defineConfig({
  plugins: [xgrammarVite],
  // The snippets of test/webllm import the package by its name.
  resolve: { alias: { ...alias, "@nearfar/web/webllm": `${import.meta.dirname}/src/webllm/index.ts` } },
  test: {
    testTimeout: 60_000,
    hookTimeout: 60_000,
    expect: { poll: { timeout: 50_000 } },
    restoreMocks: true,
    unstubGlobals: true,
    unstubEnvs: true,
    projects: [
      { extends: true, test: { name: "together", include: together, isolate: false } },
      { extends: true, test: { name: "kernels", include: kernels, isolate: false } },
      { extends: true, test: { name: "alone", include: alone } },
    ],
  },
});

import { defineConfig } from "vitest/config";

import { xgrammarVite } from "./xgrammar_module.mjs";

// SwiftShader takes its time over a pipeline, so tests on a device get more than the default five seconds.
export default defineConfig({
  plugins: [xgrammarVite],
  // The snippets of test/webllm import the package by its name.
  resolve: { alias: { "@nearfar/web/webllm": `${import.meta.dirname}/src/webllm/index.ts` } },
  test: { include: ["test/**/*.test.ts"], testTimeout: 60_000 },
});

import { defineConfig } from "vitest/config";

import { xgrammarVite } from "./xgrammar_module.mjs";

// SwiftShader takes its time over a pipeline, so tests on a device get more than the default five seconds.
export default defineConfig({ plugins: [xgrammarVite], test: { include: ["test/**/*.test.ts"], testTimeout: 60_000 } });

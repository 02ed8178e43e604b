import { defineConfig } from "vitest/config";

// SwiftShader takes its time over a pipeline, so tests on a device get more than the default five seconds.
export default defineConfig({ test: { include: ["test/**/*.test.ts"], testTimeout: 60_000 } });

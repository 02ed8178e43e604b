import type { ViteUserConfig } from "vitest/config";
import { defineConfig } from "vitest/config";

/** The tests of a package: a machine may be busy with others, and then five seconds, the default, are soon over. */
export const patientTests = (alias: Readonly<Record<string, string>> = {}): ViteUserConfig =>
  defineConfig({
    test: {
      include: ["test/**/*.test.ts"],
      testTimeout: 60_000,
      hookTimeout: 60_000,
      expect: { poll: { timeout: 50_000 } },
      alias: { ...alias },
    },
  });

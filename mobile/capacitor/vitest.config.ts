import { defineConfig } from "vitest/config";

// A machine may be busy with other tests, and then five seconds, the default, are soon over.
export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    testTimeout: 60_000,
    hookTimeout: 60_000,
    alias: { "@capacitor/core": new URL("test/fake_capacitor.ts", import.meta.url).pathname },
  },
});

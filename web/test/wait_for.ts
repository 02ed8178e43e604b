import { vi } from "vitest";

/** Wait until `check` does not throw, as long as a busy machine needs: vitest's own limit is a second. */
export const waitFor = <T>(check: () => T | Promise<T>): Promise<T> => vi.waitFor(check, { timeout: 50_000 });

import type { Plugin } from "esbuild";

/** Hugging Face's package, smaller. */
export const tokenizersEsbuild: Plugin;

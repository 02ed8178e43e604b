import type { Plugin } from "esbuild";

/** For esbuild. */
export const jinjaEsbuild: Plugin;

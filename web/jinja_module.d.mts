import type { Plugin } from "esbuild";

/** A plugin for esbuild. */
export const jinjaEsbuild: Plugin;

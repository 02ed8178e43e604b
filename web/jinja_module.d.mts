import type { Plugin } from "esbuild";
import type { Plugin as VitePlugin } from "vite";

/** A plugin for esbuild. */
export const jinjaEsbuild: Plugin;

/** A plugin for Vite, for tests. */
export const jinjaVite: VitePlugin;

import type { BuildOptions, BuildResult } from "esbuild";

/** esbuild's `build` of minified modules, which are smaller for browsers. ``banner``: a first line of each file, which is not minified. */
export function build(options: Omit<BuildOptions, "banner"> & { readonly banner?: string }): Promise<BuildResult>;

// esbuild's `build` of minified modules, which are smaller for browsers.

import { mkdir, writeFile } from "node:fs/promises";
import { dirname } from "node:path";

import { build as bundle } from "esbuild";
import { minify } from "rolldown/utils";

/**
 * Builds files. Oxc makes those that esbuild has minified smaller: it uses the same few names in each function, which
 * gzip then finds again. ``banner``: a first line of each file, which no minifier changes. The options are esbuild's.
 */
export async function build({ banner = "", ...given }) {
  const options = { bundle: true, format: "esm", target: "es2022", minify: true, logLevel: "warning", ...given };
  if (!options.minify || options.sourcemap) return bundle({ ...options, banner: { js: banner } });
  const result = await bundle({ ...options, write: false });
  for (const { path, text } of result.outputFiles) {
    const { code, errors } = await minify(path, text, { module: true, compress: { target: options.target } });
    if (errors.length > 0) throw new Error(`${path}: ${errors[0].message}`);
    await mkdir(dirname(path), { recursive: true });
    // Bundlers follow an address in quotes.
    await writeFile(path, banner + code.replace(/(?<=import\(|new URL\()`([^`$]*)`/g, '"$1"'));
  }
  return result;
}

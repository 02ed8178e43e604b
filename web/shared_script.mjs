// Builds src/shared as the one script that Python evaluates. It is in the repository, because `pip install` has no Node.

import { writeFile } from "node:fs/promises";

import { build } from "esbuild";

export const SHARED_SCRIPT = `${import.meta.dirname}/../compiler/shared/shared.js`;

/** The script's text. */
export async function sharedScript() {
  const { outputFiles } = await build({
    entryPoints: [`${import.meta.dirname}/src/shared/index.ts`],
    bundle: true,
    format: "iife",
    platform: "neutral",
    target: "es2022",
    minify: true,
    charset: "utf8",
    write: false,
  });
  return outputFiles[0].text;
}

if (process.argv[1] === import.meta.filename) await writeFile(SHARED_SCRIPT, await sharedScript());

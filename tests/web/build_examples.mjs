// Bundles web/examples/ as an application's bundler would: node build_examples.mjs OUT [NAME..]. `@nearfar/web` is this package by its exports.

import { copyFile, readFile, readdir, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const web = join(dirname(fileURLToPath(import.meta.url)), "../../web");
const { build } = createRequire(join(web, "package.json"))("esbuild");
const [out, ...names] = process.argv.slice(2);
const examples = (await readdir(join(web, "examples"), { withFileTypes: true }))
  .filter((entry) => entry.isDirectory())
  .map(({ name }) => name)
  .filter((name) => names.length === 0 || names.includes(name));

for (const name of examples) {
  await build({
    absWorkingDir: web,
    entryPoints: [`./examples/${name}/main`],
    outdir: join(out, name),
    bundle: true,
    splitting: true,
    format: "esm",
    target: "es2022",
    jsx: "automatic",
    define: { "process.env.NODE_ENV": '"production"' },
    // Modules that grammar.js imports only in Node.
    external: ["module", "fs", "path", "url", "crypto"],
    logLevel: "warning",
  });
  // An address beside the file with audio.js, which Vite and webpack copy by themselves.
  await copyFile(join(web, "dist/microphone_worklet.js"), join(out, name, "microphone_worklet.js"));
  const page = await readFile(join(web, "examples", name, "index.html"), "utf8");
  await writeFile(join(out, name, "index.html"), page.replace(/main\.tsx?"/, 'main.js"'));
}
if (examples.includes("extension"))
  await copyFile(join(web, "examples/extension/manifest.json"), join(out, "extension/manifest.json"));

// node build.mjs BUNDLE [FOLDER]: writes the app's web assets and the bundle's files into www/ or the folder.

import { copyFile, cp, mkdir, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const [bundle, www = join(here, "www")] = process.argv.slice(2);
if (bundle === undefined)
  throw new Error("which bundle? node build.mjs BUNDLE, a folder that nearfar compile --target webgpu made");

// The engine's files are copied unchanged: the worker and the page load them when they are needed.
const ENGINE = {
  "@nearfar/web": "nearfar.js",
  "@nearfar/web/worker": "worker.js",
  "@nearfar/web/grammar": "grammar.js",
};
const engineOutside = {
  name: "engine-outside",
  setup: ({ onResolve }) =>
    onResolve({ filter: /^@nearfar\/web(\/worker)?$/ }, ({ path }) => ({ path: `./${ENGINE[path]}`, external: true })),
};

await rm(www, { recursive: true, force: true });
await mkdir(www, { recursive: true });
await build({
  bundle: true,
  format: "esm",
  target: "es2022",
  minify: true,
  sourcemap: true,
  logLevel: "warning",
  absWorkingDir: here,
  entryPoints: ["src/main.ts", "src/engine_worker.ts"],
  outdir: www,
  plugins: [engineOutside],
});
await Promise.all([
  cp(bundle, join(www, "bundle"), { recursive: true }),
  ...Object.entries(ENGINE).map(([name, file]) => copyFile(fileURLToPath(import.meta.resolve(name)), join(www, file))),
  ...["index.html", "style.css", "icon.svg"].map((file) => copyFile(join(here, file), join(www, file))),
]);

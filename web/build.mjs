// Bundles the package, its tools and the two pages into dist/.

import { copyFile, mkdir, rm } from "node:fs/promises";

import { build } from "esbuild";

import { xgrammarEsbuild } from "./xgrammar_module.mjs";

const common = { bundle: true, format: "esm", target: "es2022", sourcemap: true, logLevel: "warning" };
const browser = { ...common, minify: true, platform: "browser" };

// The grammar compiler, with its wasm, is a file of its own that an engine imports when an answer is first held to a grammar.
const outside = (name, filter, path) => ({ name, setup: ({ onResolve }) => onResolve({ filter }, () => ({ path, external: true })) });
const grammarOutside = outside("grammar-outside", /\/grammar\/index\.js$/, "./grammar.js");
const grammarInTools = outside("grammar-in-tools", /\/grammar\/index\.js$/, "../grammar.js");
// What xgrammar imports in Node.
const nodeModules = ["module", "fs", "path", "url", "crypto"];

// Each is complete in itself, so that a page can load it as one file.
const ENTRIES = {
  nearfar: "src/index.ts",
  runtime: "src/runtime/index.ts",
  worker: "src/worker/index.ts",
  client: "src/worker/client.ts",
  webllm: "src/webllm/index.ts",
};

const PAGES = { page: "page/main.ts", bench: "page/bench.ts" };

await rm("dist", { recursive: true, force: true });
await mkdir("dist/page", { recursive: true });
await Promise.all([
  build({ ...browser, entryPoints: ENTRIES, outdir: "dist", plugins: [grammarOutside] }),
  build({ ...browser, entryPoints: { grammar: "src/grammar/index.ts" }, outdir: "dist", plugins: [xgrammarEsbuild], external: nodeModules }),
  build({ ...browser, splitting: true, entryPoints: PAGES, outdir: "dist/page", plugins: [xgrammarEsbuild], external: nodeModules }),
  build({ ...common, platform: "node", packages: "external", entryPoints: ["tools/*.ts"], outdir: "dist/tools", plugins: [grammarInTools] }),
  ...["index.html", "bench.html", "style.css", "chat.css", "bench.css", "icon.svg"].map((file) => copyFile(`page/${file}`, `dist/page/${file}`)),
]);

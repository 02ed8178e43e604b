// Bundles the package, its tools and the demo page into dist/.

import { copyFile, mkdir, rm } from "node:fs/promises";

import { build } from "esbuild";

import { xgrammarEsbuild } from "./xgrammar_module.mjs";

const common = { bundle: true, format: "esm", target: "es2022", sourcemap: true, logLevel: "warning" };
const browser = { ...common, minify: true, platform: "browser" };

// The grammar compiler, with its wasm, is a file of its own that nearfar.js imports when an answer is first held to a grammar. It takes the error classes
// from nearfar.js, so that each is there once.
const outside = (name, filter, path) => ({ name, setup: ({ onResolve }) => onResolve({ filter }, () => ({ path, external: true })) });
const grammarOutside = outside("grammar-outside", /\/grammar\/index\.js$/, "./grammar.js");
const grammarInTools = outside("grammar-in-tools", /\/grammar\/index\.js$/, "../grammar.js");
const errorsOutside = outside("errors-outside", /\/errors\.js$/, "./nearfar.js");
// What xgrammar imports in Node.
const nodeModules = ["module", "fs", "path", "url", "crypto"];

await rm("dist", { recursive: true, force: true });
await mkdir("dist/page", { recursive: true });
await Promise.all([
  build({ ...browser, entryPoints: { nearfar: "src/index.ts", runtime: "src/runtime/index.ts" }, outdir: "dist", plugins: [grammarOutside] }),
  build({ ...browser, entryPoints: { grammar: "src/grammar/index.ts" }, outdir: "dist", plugins: [errorsOutside, xgrammarEsbuild], external: nodeModules }),
  build({ ...browser, splitting: true, entryPoints: { page: "page/main.ts" }, outdir: "dist/page", plugins: [xgrammarEsbuild], external: nodeModules }),
  build({ ...common, platform: "node", packages: "external", entryPoints: ["tools/*.ts"], outdir: "dist/tools", plugins: [grammarInTools] }),
  ...["index.html", "style.css", "icon.svg"].map((file) => copyFile(`page/${file}`, `dist/page/${file}`)),
]);

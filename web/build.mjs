// Bundles the package, its tools and the demo page into dist/.

import { copyFile, mkdir, rm } from "node:fs/promises";

import { build } from "esbuild";

const common = { bundle: true, format: "esm", target: "es2022", sourcemap: true, logLevel: "warning" };

// Each is complete in itself, so that a page can load it as one file.
const ENTRIES = {
  nearfar: "src/index.ts",
  runtime: "src/runtime/index.ts",
  worker: "src/worker/index.ts",
  client: "src/worker/client.ts",
  webllm: "src/webllm/index.ts",
};

await rm("dist", { recursive: true, force: true });
await mkdir("dist/page", { recursive: true });
await Promise.all([
  build({ ...common, minify: true, platform: "browser", entryPoints: ENTRIES, outdir: "dist" }),
  build({ ...common, minify: true, platform: "browser", entryPoints: { page: "page/main.ts" }, outdir: "dist/page" }),
  build({ ...common, platform: "node", packages: "external", entryPoints: ["tools/*.ts"], outdir: "dist/tools" }),
  ...["index.html", "style.css", "icon.svg"].map((file) => copyFile(`page/${file}`, `dist/page/${file}`)),
]);

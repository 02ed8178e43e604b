// Bundles the page's side and the app's side into dist/. It uses the built files of @nearfar/web.

import { rm } from "node:fs/promises";

import { build } from "esbuild";

await rm("dist", { recursive: true, force: true });
await build({
  bundle: true,
  format: "esm",
  target: "es2022",
  platform: "browser",
  minify: true,
  sourcemap: true,
  logLevel: "warning",
  entryPoints: { webview: "src/index.ts", app: "src/app.ts" },
  outdir: "dist",
});

// Bundles the page's side and the app's side into dist/. It uses the built files of @nearfar/web.

import { copyFile, rm } from "node:fs/promises";

import { build } from "esbuild";

await rm("dist", { recursive: true, force: true });
await build({
  bundle: true,
  format: "esm",
  target: "es2022",
  platform: "browser",
  minify: true,
  logLevel: "warning",
  entryPoints: { webview: "src/index.ts", app: "src/app.ts" },
  outdir: "dist",
});
// The code of @nearfar/web contains that of others.
await copyFile("../../web/dist/LICENSES.txt", "dist/LICENSES.txt");
await copyFile("../../LICENSE", "LICENSE");

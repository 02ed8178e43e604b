// Bundles the package, its tools and the two pages into dist/.

import { copyFile, mkdir, rm } from "node:fs/promises";

import { build } from "esbuild";

const common = { bundle: true, format: "esm", target: "es2022", sourcemap: true, logLevel: "warning" };

await rm("dist", { recursive: true, force: true });
await mkdir("dist/page", { recursive: true });
await Promise.all([
  build({ ...common, minify: true, platform: "browser", entryPoints: { nearfar: "src/index.ts", runtime: "src/runtime/index.ts" }, outdir: "dist" }),
  build({ ...common, minify: true, platform: "browser", entryPoints: { page: "page/main.ts", bench: "page/bench.ts" }, outdir: "dist/page" }),
  build({ ...common, platform: "node", packages: "external", entryPoints: ["tools/*.ts"], outdir: "dist/tools" }),
  ...["index.html", "bench.html", "style.css", "chat.css", "bench.css", "icon.svg"].map((file) => copyFile(`page/${file}`, `dist/page/${file}`)),
]);

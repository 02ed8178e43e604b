// Bundles the package and the parts of @nearfar/web that it uses into dist/index.js, and copies the native sources that
// it shares with other packages into native/, because an npm package contains all of its sources.

import { copyFile, cp, rm } from "node:fs/promises";

import { build } from "../../web/browser_build.mjs";

for (const folder of ["dist", "native", "ios/native"]) await rm(folder, { recursive: true, force: true });
await build({
  platform: "neutral",
  entryPoints: { index: "src/index.ts" },
  outdir: "dist",
  external: ["expo"],
});
// Without the bridge of web views. CocoaPods builds only what is below ios/.
for (const file of ["BundleDownloads.swift", "DownloadJob.swift"])
  await cp(`../native/ios/Sources/Nearfar/${file}`, `ios/native/${file}`);
await cp("../native/android/src/main/kotlin/org/nearfar/downloads", "native/android/org/nearfar/downloads", {
  recursive: true,
});
await copyFile("../../web/dist/LICENSES.txt", "dist/LICENSES.txt");
await copyFile("../../LICENSE", "LICENSE");

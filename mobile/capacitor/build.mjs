// Bundles the package and the parts of @nearfar/web that it uses into dist/index.js, and copies the native sources that
// it shares with other packages into native/, because an npm package contains all of its sources.

import { copyFile, cp, rm } from "node:fs/promises";

import { build } from "../../web/browser_build.mjs";

for (const folder of ["dist", "native"]) await rm(folder, { recursive: true, force: true });
await build({
  platform: "browser",
  entryPoints: { index: "src/index.ts" },
  outdir: "dist",
  external: ["@capacitor/core"],
});
await cp("../native/ios/Sources/Nearfar", "native/ios", { recursive: true });
await cp("../native/android/src/main/kotlin", "native/android", { recursive: true });
await copyFile("../../web/dist/LICENSES.txt", "dist/LICENSES.txt");
await copyFile("../../LICENSE", "LICENSE");

// Bundles the page's side and the app's side into dist/. It uses the built files of @nearfar/web.

import { copyFile, rm } from "node:fs/promises";

import { build } from "../../web/browser_build.mjs";

const WEB = "../../web/dist";
// The page imports it for the first sound that is not a WAV file, or for the microphone.
const audioLater = {
  name: "audio-outside",
  setup: ({ onResolve }) => onResolve({ filter: /^\.\/audio\.js$/ }, ({ path }) => ({ path, external: true })),
};

await rm("dist", { recursive: true, force: true });
await build({
  platform: "browser",
  entryPoints: { webview: "src/index.ts", app: "src/app.ts" },
  outdir: "dist",
  plugins: [audioLater],
});
// The worklet is an address of audio.js. The code of @nearfar/web contains that of others.
for (const file of ["audio.js", "microphone_worklet.js", "LICENSES.txt"])
  await copyFile(`${WEB}/${file}`, `dist/${file}`);
await copyFile("../../LICENSE", "LICENSE");

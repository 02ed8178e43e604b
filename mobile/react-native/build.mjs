// Bundles the package and the parts of @nearfar/web that it uses into dist/index.js. Two files are left out: the
// grammar compiler, which is WebAssembly, and the import of an ONNX Runtime by its address. Hermes supports neither.

import { copyFile, rm } from "node:fs/promises";

import { build } from "../../web/browser_build.mjs";

const OUTSIDE = {
  "grammar/index.js": "throw new Error('React Native runs no WebAssembly, so answers cannot be held to a grammar');",
  "onnx_backend.js":
    "export function openOnnx() { throw new Error('use load of @nearfar/react-native'); } " +
    "export const planOnnx = openOnnx;",
};
const outside = {
  name: "outside",
  setup: ({ onResolve, onLoad }) => {
    for (const file of Object.keys(OUTSIDE))
      onResolve({ filter: new RegExp(`/${file.replace(".", "\\.")}$`) }, () => ({ path: file, namespace: "outside" }));
    onLoad({ filter: /.*/, namespace: "outside" }, ({ path }) => ({ contents: OUTSIDE[path] }));
  },
};

await rm("dist", { recursive: true, force: true });
await build({
  platform: "neutral",
  mainFields: ["module", "main"],
  conditions: ["import"],
  entryPoints: { index: "src/index.ts" },
  outdir: "dist",
  plugins: [outside],
});
// The code of @nearfar/web contains that of others.
await copyFile("../../web/dist/LICENSES.txt", "dist/LICENSES.txt");
await copyFile("../../LICENSE", "LICENSE");

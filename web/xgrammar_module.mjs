// @mlc-ai/web-xgrammar as an ES module whose default export makes a new wasm instance. The package itself is an UMD file, which sets a global where it
// is imported as the ES module that its package.json says it is; it keeps its one instance to itself, which no error leaves whole.

import { createRequire } from "node:module";
import { readFile } from "node:fs/promises";

export const NAME = "xgrammar-wasm";

const EXPORTS = "exports.CompiledGrammar = CompiledGrammar;";
// The file looks for its own address, in Node with a `require` that ES modules lack; the wasm is inside of it, so that any address does.
const HEAD = 'const exports = {}, module = { exports }, location = globalThis.location ?? { href: "file:///" };\n';

/** The text of the module. */
export async function xgrammarModule() {
  const file = createRequire(import.meta.url).resolve("@mlc-ai/web-xgrammar");
  const text = (await readFile(file, "utf8")).replace(/\/\/# sourceMappingURL=.*/, "");
  if (text.split(EXPORTS).length !== 2) throw new Error(`${file} has another form than this file is for; see what its exports are now`);
  return `${HEAD}${text.replace(EXPORTS, `exports.instantiate = Module; ${EXPORTS}`)}\nexport default exports.instantiate;\n`;
}

/** For esbuild. */
export const xgrammarEsbuild = {
  name: NAME,
  setup(build) {
    build.onResolve({ filter: new RegExp(`^${NAME}$`) }, () => ({ path: NAME, namespace: NAME }));
    build.onLoad({ filter: /.*/, namespace: NAME }, async () => ({ contents: await xgrammarModule(), loader: "js" }));
  },
};

/** For vitest. */
export const xgrammarVite = {
  name: NAME,
  resolveId: (id) => (id === NAME ? `\0${NAME}` : undefined),
  load: (id) => (id === `\0${NAME}` ? xgrammarModule() : undefined),
};

// The wasm of @mlc-ai/web-xgrammar as an ES module. Its default export creates a new instance of the wasm, because an
// instance is unusable after an error and the package itself has only a single one. The same module works in browsers,
// workers and Node: it imports nothing, so every bundler can read it.

import { createRequire } from "node:module";
import { readFile } from "node:fs/promises";

export const NAME = "xgrammar-wasm";

// Emscripten's glue code, which contains the wasm as base64. The rest of the package's file is an API that nothing here
// uses.
const GLUE = /^ {2}var Module = (\(\(\) => \{\n.*?^ {2}\}\)\(\));$/ms;
// The glue code detects its platform to find the wasm file, but this wasm is inline. The remaining glue code uses
// globals that every platform has.
const CHANGES = [
  [/^ *var _scriptDir = .*$/m, ""],
  [/var ENVIRONMENT_IS_WEB=.*?;(?=var scriptDirectory=)/, ""],
  [/if\(ENVIRONMENT_IS_NODE\)\{const\{createRequire.*?\}\}else;(?=var out=)/, ""],
  [/\bENVIRONMENT_IS_(WEB|WORKER|NODE)\b/g, "false"],
];

/** The text of the module. Throws if the package's file has another form. */
export async function xgrammarModule() {
  const file = createRequire(import.meta.url).resolve("@mlc-ai/web-xgrammar");
  const match = GLUE.exec(await readFile(file, "utf8"));
  if (match === null)
    throw new Error(`${file} does not contain ${GLUE}; adapt xgrammar_module.mjs to this version of the package`);
  let glue = match[1];
  for (const [from, to] of CHANGES) {
    if (glue.split(from).length < 2)
      throw new Error(`${file} does not contain ${from}; adapt xgrammar_module.mjs to this version of the package`);
    glue = glue.replace(from, to);
  }
  return `export default ${glue};\n`;
}

/** A plugin for esbuild. */
export const xgrammarEsbuild = {
  name: NAME,
  setup(build) {
    build.onResolve({ filter: new RegExp(`^${NAME}$`) }, () => ({ path: NAME, namespace: NAME }));
    build.onLoad({ filter: /.*/, namespace: NAME }, async () => ({ contents: await xgrammarModule(), loader: "js" }));
  },
};

/** A plugin for vitest. */
export const xgrammarVite = {
  name: NAME,
  resolveId: (id) => (id === NAME ? `\0${NAME}` : undefined),
  load: (id) => (id === `\0${NAME}` ? xgrammarModule() : undefined),
};

import { defineConfig } from "vitest/config";

import { jinjaVite } from "./jinja_module.mjs";
import { xgrammarVite } from "./xgrammar_module.mjs";

// REACT_FOLDER: the hooks' tests run on the React in this folder's node_modules, such as version 18.
const { REACT_FOLDER: reactFolder } = process.env;
const alias =
  reactFolder === undefined
    ? {}
    : { react: `${reactFolder}/node_modules/react`, "react-dom": `${reactFolder}/node_modules/react-dom` };

// SwiftShader takes its time over a pipeline, so tests on a device get more than the default five seconds.
export default defineConfig({
  plugins: [jinjaVite, xgrammarVite],
  // The snippets of test/webllm import the package by its name.
  resolve: { alias: { ...alias, "@nearfar/web/webllm": `${import.meta.dirname}/src/webllm/index.ts` } },
  test: { include: ["test/**/*.test.ts"], testTimeout: 60_000, server: { deps: { inline: [/@huggingface\/jinja/] } } },
});

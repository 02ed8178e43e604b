// Leaves out of @huggingface/jinja what prints a template again: nothing here calls it, and 1.4 kB gzipped of functions hang on it.

import { readFile } from "node:fs/promises";

const FORMAT = /\n {2}format\(options\) \{\n.*\n {2}\}/;

export const jinjaEsbuild = {
  name: "jinja",
  setup({ onLoad }) {
    onLoad({ filter: /@huggingface\/jinja\/dist\/index\.js$/ }, async ({ path }) => {
      const source = await readFile(path, "utf8");
      if (!FORMAT.test(source)) throw new Error(`${path}: has no method Template.format any more; take this plugin out, or correct it`);
      return { contents: source.replace(FORMAT, "") };
    });
  },
};

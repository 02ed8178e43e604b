// Makes @huggingface/tokenizers smaller: it removes tokenizers that no language model has. Their tokenizer.json is
// refused by name, as any unknown one.

import { readFile } from "node:fs/promises";

import { replaced } from "./jinja_module.mjs";

// Each part of the package's file, and its replacement.
const CHANGES = [
  // The decoder of speech recognition without a language model.
  ['    case "CTC":\n      return new CTC_default(config);\n', ""],
  // Models without a type, from before tokenizer.json had one.
  [/ else \{\n\s+return new Legacy_default\(.*?\}\);\n\s+\}/s, ""],
];

/** A plugin for esbuild. Throws for a version of the package that has another form. */
export const tokenizersEsbuild = {
  name: "tokenizers-smaller",
  setup(build) {
    build.onLoad({ filter: /@huggingface[\\/]tokenizers[\\/]dist[\\/]tokenizers\.mjs$/ }, async ({ path }) => ({
      contents: replaced(await readFile(path, "utf8"), CHANGES, path),
      loader: "js",
    }));
  },
};

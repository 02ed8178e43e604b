// Makes @huggingface/tokenizers smaller: it removes tokenizers that no language model has. Their tokenizer.json is
// refused by name, as any unknown one.

import { readFile } from "node:fs/promises";

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

/** Throws if a part is missing. */
function replaced(contents, changes, path) {
  for (const [from, to] of changes) {
    if (contents.split(from).length < 2)
      throw new Error(`${path} does not contain ${from}; adapt its replacements to this version of the package`);
    contents = typeof from === "string" ? contents.replaceAll(from, () => to) : contents.replace(from, to);
  }
  return contents;
}

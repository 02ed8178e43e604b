// @huggingface/jinja without what nothing here uses and no bundler can leave out, and with its token types as constants, whose names a bundler shortens.

import { readFile } from "node:fs/promises";

// Each part of the package's file, and what takes its place.
const CHANGES = [
  // The formatter of templates.
  [/\n\/\/ src\/format\.ts\n.*?(?=\n\/\/ src\/index\.ts\n)/s, ""],
  ['return format(this.parsed, options?.indent || "\t");', ""],
  // What writes static fields for old browsers.
  [/^var __defProp = .*?\n};\n/s, "var __publicField = (obj, key, value) => { obj[key] = value; };\n"],
  // One object of token types.
  [
    /var TOKEN_TYPES = Object\.freeze\(\{(.*?)\n\}\);/s,
    (_, rows) => rows.replace(/^ {2}(\w+): ("\w+"),?$/gm, "var TOKEN_TYPES_$1 = $2;"),
  ],
];

/** For esbuild. Throws for a version of the package that has another form. */
export const jinjaEsbuild = {
  name: "jinja-smaller",
  setup(build) {
    build.onLoad({ filter: /@huggingface[\\/]jinja[\\/]dist[\\/]index\.js$/ }, async ({ path }) => {
      let contents = await readFile(path, "utf8");
      for (const [from, to] of CHANGES) {
        if (contents.split(from).length < 2)
          throw new Error(`${path} has another form than this file is for; look for ${from}`);
        contents = contents.replace(from, to);
      }
      return { contents: contents.replaceAll("TOKEN_TYPES.", "TOKEN_TYPES_"), loader: "js" };
    });
  },
};

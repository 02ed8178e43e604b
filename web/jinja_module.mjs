// Makes @huggingface/jinja smaller: it removes code that nothing here uses and that no bundler can remove, and replaces
// names that no bundler shortens.

import { readFile } from "node:fs/promises";

// Each part of the package's file, and its replacement.
const CHANGES = [
  // The formatter of templates.
  [/\n\/\/ src\/format\.ts\n.*?(?=\n\/\/ src\/index\.ts\n)/s, ""],
  ['return format(this.parsed, options?.indent || "\t");', ""],
  // The helper that writes static fields for old browsers.
  [/^var __defProp = .*?\n};\n/s, "var __publicField = (obj, key, value) => { obj[key] = value; };\n"],
  // The object of token types, as constants.
  [
    /var TOKEN_TYPES = Object\.freeze\(\{(.*?)\n\}\);/s,
    (_, rows) => rows.replace(/^ {2}(\w+): ("\w+"),?$/gm, "var TOKEN_TYPES_$1 = $2;"),
  ],
];

/** The interpreter's own methods, with numbers for names. */
function numberMethods(contents) {
  const name =
    /\b(?:evaluate[A-Z]|evalProgram|applyFilter|bindMacroArguments|declareVariable|setVariable|lookupVariable)\w*/g;
  const names = [...new Set(contents.match(name))];
  return contents.replace(name, (method) => `e${names.indexOf(method)}`);
}

/** A plugin for esbuild. Throws for a version of the package that has another form. */
export const jinjaEsbuild = {
  name: "jinja-smaller",
  setup(build) {
    build.onLoad({ filter: /@huggingface[\\/]jinja[\\/]dist[\\/]index\.js$/ }, async ({ path }) => {
      let contents = await readFile(path, "utf8");
      for (const [from, to] of CHANGES) {
        if (contents.split(from).length < 2)
          throw new Error(`${path} does not contain ${from}; adapt jinja_module.mjs to this version of the package`);
        contents = contents.replace(from, to);
      }
      return { contents: numberMethods(contents.replaceAll("TOKEN_TYPES.", "TOKEN_TYPES_")), loader: "js" };
    });
  },
};

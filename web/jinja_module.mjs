// @huggingface/jinja without its formatter of templates, which nothing here calls and which no bundler can leave out of a class.

import { readFile } from "node:fs/promises";

const FORMAT = "return format(this.parsed, options?.indent || \"\t\");";

/** For esbuild. */
export const jinjaEsbuild = {
  name: "jinja-without-format",
  setup(build) {
    build.onLoad({ filter: /@huggingface[\\/]jinja[\\/]dist[\\/]index\.js$/ }, async ({ path }) => {
      const text = await readFile(path, "utf8");
      if (text.split(FORMAT).length !== 2) throw new Error(`${path} has another form than this file is for; see how Template formats now`);
      return { contents: text.replace(FORMAT, ""), loader: "js" };
    });
  },
};

// `make docs`: a site with the guides, the READMEs, the pages that web/docs/pages.py has written into build/docs-pages, and
// the types of all exports of the package, in build/docs. A broken link is an error.

import { execFileSync } from "node:child_process";
import { readFileSync, readdirSync } from "node:fs";

import { groupOrder } from "./docs/names.mjs";

const { exports } = JSON.parse(readFileSync(new URL("package.json", import.meta.url), "utf8"));
const documents = execFileSync("git", ["ls-files", "--cached", "--others", "--exclude-standard", "*.md"], {
  cwd: new URL("..", import.meta.url),
  encoding: "utf8",
})
  .trim()
  .split("\n");
const written = readdirSync(new URL("../build/docs-pages/", import.meta.url)).map((file) => `build/docs-pages/${file}`);
// The guides in the order of the table in the first one.
const first = "web/docs/bundle.md";
const table = readFileSync(new URL(`../${first}`, import.meta.url), "utf8").matchAll(/^\|[^|]*\]\((\w+\.md)\)/gm);
const guides = [first, ...[...table].map(([, file]) => `web/docs/${file}`)];

export default {
  name: "nearfar",
  out: "../build/docs",
  tsconfig: "tsconfig.types.json",
  plugin: ["./docs/names.mjs"],
  entryPoints: Object.values(exports).map(({ types }) =>
    types.replace("./dist/types/", "src/").replace(".d.ts", ".ts"),
  ),
  readme: "../README.md",
  projectDocuments: [
    ...guides,
    ...written,
    ...documents.filter((file) => file !== "README.md" && !guides.includes(file)),
  ].map((file) => `../${file}`),
  // A document's own heading is its title.
  headings: { readme: false, document: false },
  customCss: "docs/site.css",
  groupOrder,
  navigation: { includeGroups: true, includeFolders: false, includeCategories: false },
  locales: { en: { kind_plural_module: "TypeScript" } },
  searchInDocuments: true,
  searchInComments: true,
  highlightLanguages: [
    "bash",
    "css",
    "html",
    "javascript",
    "json",
    "jsonc",
    "kotlin",
    "python",
    "svelte",
    "swift",
    "toml",
    "tsx",
    "typescript",
    "vue",
    "yaml",
  ],
  excludePrivate: true,
  excludeExternals: true,
  disableSources: true,
  hideGenerator: true,
  validation: { notExported: false, invalidLink: true, invalidPath: true, rewrittenLink: true },
  treatWarningsAsErrors: true,
};

// `make docs`: a site with the READMEs and the types of all exports of the package, in build/docs. A broken link is an
// error.

import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";

const { exports } = JSON.parse(readFileSync(new URL("package.json", import.meta.url), "utf8"));
const documents = execFileSync("git", ["ls-files", "--cached", "--others", "--exclude-standard", "*.md"], {
  cwd: new URL("..", import.meta.url),
  encoding: "utf8",
});

export default {
  name: "nearfar",
  out: "../build/docs",
  tsconfig: "tsconfig.types.json",
  plugin: ["./docs/names.mjs"],
  entryPoints: Object.values(exports).map(({ types }) =>
    types.replace("./dist/types/", "src/").replace(".d.ts", ".ts"),
  ),
  readme: "../README.md",
  projectDocuments: documents
    .trim()
    .split("\n")
    .filter((file) => file !== "README.md")
    .map((file) => `../${file}`),
  highlightLanguages: [
    "bash",
    "css",
    "html",
    "javascript",
    "json",
    "jsonc",
    "kotlin",
    "python",
    "swift",
    "toml",
    "tsx",
    "typescript",
  ],
  excludePrivate: true,
  excludeExternals: true,
  disableSources: true,
  hideGenerator: true,
  validation: { notExported: false, invalidLink: true, invalidPath: true, rewrittenLink: true },
  treatWarningsAsErrors: true,
};

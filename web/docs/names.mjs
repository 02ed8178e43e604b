// A TypeDoc plugin that gives pages the names and the groups that readers know: a document its first heading and the
// part of the site in which they look for it, a module the name under which it is imported.

import { readFileSync } from "node:fs";

import { Converter, ReflectionKind } from "typedoc";

const { name, exports } = JSON.parse(readFileSync(new URL("../package.json", import.meta.url), "utf8"));
const imported = new Map(
  Object.entries(exports).map(([path, { types }]) => [
    types.replace("./dist/types/", "").replace(/(\/index)?\.d\.ts$/, ""),
    `${name}${path.slice(1)}`,
  ]),
);

/** The parts of the site in their order, with the folders of their documents. The first that matches has the document. */
const GROUPS = [
  ["Start here", /^web\/docs\/|^build\/docs-pages\/devices/],
  ["Python", /^build\/docs-pages\//],
  ["Behind it", /^(tests|CONTRIBUTING|CHANGELOG|compiler\/demo|compiler\/README|targets|server_fallback\/text)/],
  ["Handbook", /./],
];
export const groupOrder = ["Start here", "Handbook", "TypeScript", "Python", "Behind it"];

export function load(app) {
  const root = new URL("../..", import.meta.url).pathname;
  app.converter.on(Converter.EVENT_CREATE_DOCUMENT, (_, document) => {
    const text = document.content.map((part) => part.text).join("");
    document.name = /^# (.+)$/m.exec(text)?.[1] ?? document.name;
    const file = document.project.files.getReflectionPath(document).replace(root, "");
    document.frontmatter.group = GROUPS.find(([, pattern]) => pattern.test(file))[0];
  });
  app.converter.on(Converter.EVENT_CREATE_DECLARATION, (_, declaration) => {
    if (declaration.kindOf(ReflectionKind.Module))
      declaration.name = imported.get(declaration.name) ?? declaration.name;
  });
}

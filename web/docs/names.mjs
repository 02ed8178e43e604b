// A TypeDoc plugin that gives pages the names that readers know: a document its first heading, a module the name under
// which it is imported.

import { readFileSync } from "node:fs";

import { Converter, ReflectionKind } from "typedoc";

const { name, exports } = JSON.parse(readFileSync(new URL("../package.json", import.meta.url), "utf8"));
const imported = new Map(
  Object.entries(exports).map(([path, { types }]) => [
    types.replace("./dist/types/", "").replace(/(\/index)?\.d\.ts$/, ""),
    `${name}${path.slice(1)}`,
  ]),
);

export function load(app) {
  app.converter.on(Converter.EVENT_CREATE_DOCUMENT, (_, document) => {
    const text = document.content.map((part) => part.text).join("");
    document.name = /^# (.+)$/m.exec(text)?.[1] ?? document.name;
  });
  app.converter.on(Converter.EVENT_CREATE_DECLARATION, (_, declaration) => {
    if (declaration.kindOf(ReflectionKind.Module))
      declaration.name = imported.get(declaration.name) ?? declaration.name;
  });
}

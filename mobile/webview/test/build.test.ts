// The built files: what one of them imports or loads later is beside it.

import { readFileSync, readdirSync } from "node:fs";

import { expect, test } from "vitest";

const DIST = new URL("../dist/", import.meta.url);

test("the page's file imports the code for sound later, and every file finds what it loads", () => {
  const scripts = readdirSync(DIST).filter((name) => name.endsWith(".js"));
  const loaded = scripts.flatMap((name) => {
    const source = readFileSync(new URL(name, DIST), "utf8");
    const found = source.matchAll(/(?:import\(|from|new URL\()\s*"\.\/([^"]+)"/g);
    return Array.from(found, ([, file]) => [name, file] as const);
  });
  expect(loaded).toEqual(
    expect.arrayContaining([
      ["webview.js", "audio.js"],
      ["audio.js", "microphone_worklet.js"],
    ]),
  );
  expect(scripts).toEqual(expect.arrayContaining(loaded.map(([, file]) => file)));
});

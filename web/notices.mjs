// The licenses of other people's code in a folder of dist/, which must be distributed with it. The packages come from
// esbuild's metafiles, so a package that a module imports is named without a list to maintain.

import { readFile, readdir } from "node:fs/promises";
import { join } from "node:path";

/** Modules that are not files of a package, and whose code they contain. */
const VIRTUAL = { "xgrammar-wasm": "@mlc-ai/web-xgrammar" };

/** Code inside a package's files whose license the package's own file does not have, and where it is here. */
const INSIDE = {
  "@mlc-ai/web-xgrammar": { xgrammar: "notices/xgrammar.txt", picojson: "../.packaging/picojson-LICENSE" },
  // Its legacy build.
  "pdfjs-dist": { "core-js": "notices/core-js.txt" },
};

/** Files of a package that are copied, not bundled, and have their own license. */
const COPIED = { "pdfjs-dist": { "Adobe's CMap resources, in pdf/cmaps": "cmaps/LICENSE" } };

/** The names of the packages whose code is in the outputs of these metafiles, in order. */
export function packagesIn(metafiles) {
  const names = new Set();
  for (const { outputs } of metafiles)
    for (const { inputs } of Object.values(outputs))
      for (const [path, { bytesInOutput }] of Object.entries(inputs)) {
        const name = packageOf(path);
        if (bytesInOutput > 0 && name !== null) names.add(name);
      }
  return [...names].sort();
}

/** The text of the notices: our license, then that of each package. Throws for a package without a license file. */
export async function noticesOf(metafiles, modules = "node_modules") {
  const parts = [`nearfar\n\n${await readFile("../LICENSE", "utf8")}`];
  for (const name of packagesIn(metafiles)) parts.push(...(await partsOf(name, join(modules, name))));
  return parts.map((part) => part.trim()).join(`\n\n${"-".repeat(80)}\n\n`) + "\n";
}

function packageOf(path) {
  const virtual = VIRTUAL[path.split(":")[0]];
  if (virtual !== undefined) return virtual;
  return /.*(?:^|\/)node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(path)?.[1] ?? null;
}

async function partsOf(name, folder) {
  const { version, license } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
  const files = (await readdir(folder)).filter((file) => /^(?:licen[cs]e|notice|copying)/i.test(file)).sort();
  const texts = await Promise.all(files.map((file) => readFile(join(folder, file), "utf8")));
  // The text of the Apache License is at the top already.
  if (texts.length === 0 && license === "Apache-2.0") texts.push("It has the Apache License, Version 2.0, above.");
  if (texts.length === 0) throw new Error(`${folder} has no license file; add its license (${license}) to notices.mjs`);
  const parts = [[`${name} ${version} (${license})`, ...texts].join("\n\n")];
  for (const [inside, file] of Object.entries(INSIDE[name] ?? {}))
    parts.push(`${inside}, in ${name}\n\n${await readFile(file, "utf8")}`);
  for (const [title, file] of Object.entries(COPIED[name] ?? {}))
    parts.push(`${title}\n\n${await readFile(join(folder, file), "utf8")}`);
  return parts;
}

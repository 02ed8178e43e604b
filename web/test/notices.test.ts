import { build } from "esbuild";
import { expect, it } from "vitest";

import { noticesOf, packagesIn } from "../notices.mjs";
import { xgrammarEsbuild } from "../xgrammar_module.mjs";

async function metafileOf(contents: string) {
  const stdin = { contents, resolveDir: import.meta.dirname };
  const { metafile } = await build({
    stdin,
    bundle: true,
    format: "esm",
    write: false,
    metafile: true,
    plugins: [xgrammarEsbuild],
  });
  return metafile;
}

it("names the packages whose code is in the output, also in a module that a plugin makes", async () => {
  const metafiles = await Promise.all([
    metafileOf('export { marked } from "marked"; import { unzlibSync } from "fflate";'),
    metafileOf('export { default } from "xgrammar-wasm"; export { Tokenizer } from "@huggingface/tokenizers";'),
  ]);
  expect(packagesIn(metafiles)).toEqual(["@huggingface/tokenizers", "@mlc-ai/web-xgrammar", "marked"]);
  const text = await noticesOf(metafiles);
  for (const words of ["Christopher Jeffrey", "XGrammar Contributors", "Kazuho Oku", "marked "])
    expect(text).toContain(words);
});

it("has the notices of the files of PDF.js that the page serves", async () => {
  const pdf = { outputs: { a: { inputs: { "node_modules/pdfjs-dist/legacy/build/pdf.mjs": { bytesInOutput: 1 } } } } };
  const text = await noticesOf([pdf as never]);
  for (const words of ["pdfjs-dist 6", "Denis Pushkarev", "Adobe Systems"]) expect(text).toContain(words);
});

it("refuses a package without a license", async () => {
  const unknown = { outputs: { a: { inputs: { "node_modules/none/index.js": { bytesInOutput: 1 } } } } };
  await expect(noticesOf([unknown as never])).rejects.toThrow("none");
});

// What a page loads, gzipped, against the most that it may be. With --json one line for scripts; exit code 1 above a limit.

import { readFile, readdir } from "node:fs/promises";
import { gzipSync } from "node:zlib";

const LIMITS = { core_gzip_bytes: 40_000, full_gzip_bytes: 70_000, client_gzip_bytes: 10_000, onnx_gzip_bytes: 10_000, hybrid_gzip_bytes: 26_000, speculation_gzip_bytes: 5_000 };
const FILES = { core_gzip_bytes: "dist/runtime.js", full_gzip_bytes: "dist/nearfar.js", client_gzip_bytes: "dist/client.js", onnx_gzip_bytes: "dist/onnx.js", hybrid_gzip_bytes: "dist/hybrid.js", speculation_gzip_bytes: "dist/speculation.js" };

const sizes = {};
for (const [name, file] of Object.entries(FILES)) sizes[name] = gzipSync(await readFile(file), { level: 9 }).length;

if (process.argv.includes("--json")) console.log(JSON.stringify(sizes));
else for (const [name, file] of Object.entries(FILES)) console.log(`${file}: ${sizes[name]} bytes gzipped, at most ${LIMITS[name]}`);

if (!process.argv.includes("--json")) await printPageSizes();

/** The chat page's scripts: those that it loads at once, with all that they import, and those that it loads when they are needed. */
async function printPageSizes() {
  const files = (await readdir("dist/page")).filter((file) => file.endsWith(".js"));
  const first = new Set();
  const visit = async (file) => {
    if (first.has(file)) return;
    first.add(file);
    const source = await readFile(`dist/page/${file}`, "utf8");
    for (const [, imported] of source.matchAll(/(?:from|import)\s*"\.\/([^"]+\.js)"/g)) await visit(imported);
  };
  await visit("page.js");
  const size = async (file) => gzipSync(await readFile(`dist/page/${file}`), { level: 9 }).length;
  const sum = (await Promise.all([...first].map(size))).reduce((total, bytes) => total + bytes, 0);
  console.log(`dist/page/page.js with its imports: ${sum} bytes gzipped`);
  for (const name of ["highlight", "maths"]) {
    const file = files.find((candidate) => candidate.startsWith(`${name}-`));
    console.log(`dist/page/${file}, when first needed: ${await size(file)} bytes gzipped`);
  }
}

const tooLarge = Object.keys(LIMITS).filter((name) => sizes[name] > LIMITS[name]);
for (const name of tooLarge) console.error(`${FILES[name]} is ${sizes[name] - LIMITS[name]} bytes too large`);
process.exitCode = tooLarge.length > 0 ? 1 : 0;

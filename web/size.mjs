// What a page loads, gzipped, against the most that it may be. With --json one line for scripts; exit code 1 above a limit.

import { readFile } from "node:fs/promises";
import { gzipSync } from "node:zlib";

const LIMITS = { core_gzip_bytes: 40_000, full_gzip_bytes: 70_000, client_gzip_bytes: 10_000, onnx_gzip_bytes: 10_000, hybrid_gzip_bytes: 26_000, speculation_gzip_bytes: 5_000 };
const FILES = { core_gzip_bytes: "dist/runtime.js", full_gzip_bytes: "dist/nearfar.js", client_gzip_bytes: "dist/client.js", onnx_gzip_bytes: "dist/onnx.js", hybrid_gzip_bytes: "dist/hybrid.js", speculation_gzip_bytes: "dist/speculation.js" };
// The adapters for other libraries, without these.
for (const [name, limit] of Object.entries({ fetch: 3_000, ai_sdk: 5_000, langchain: 4_000, react: 4_000 })) {
  LIMITS[`${name}_gzip_bytes`] = limit;
  FILES[`${name}_gzip_bytes`] = `dist/${name}.js`;
}

const sizes = {};
for (const [name, file] of Object.entries(FILES)) sizes[name] = gzipSync(await readFile(file), { level: 9 }).length;

if (process.argv.includes("--json")) console.log(JSON.stringify(sizes));
else for (const [name, file] of Object.entries(FILES)) console.log(`${file}: ${sizes[name]} bytes gzipped, at most ${LIMITS[name]}`);

const tooLarge = Object.keys(LIMITS).filter((name) => sizes[name] > LIMITS[name]);
for (const name of tooLarge) console.error(`${FILES[name]} is ${sizes[name] - LIMITS[name]} bytes too large`);
process.exitCode = tooLarge.length > 0 ? 1 : 0;

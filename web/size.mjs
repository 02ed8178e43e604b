// Prints the gzipped sizes of the files that a page loads, and their limits; with --json as one line for scripts. The
// exit code is 1 if a file exceeds its limit.

import { readFile, readdir } from "node:fs/promises";
import { gzipSync } from "node:zlib";

// For each name in the JSON: the file, and its limit in bytes.
const FILES = {
  core_gzip_bytes: ["dist/runtime.js", 28_800],
  full_gzip_bytes: ["dist/nearfar.js", 94_300],
  client_gzip_bytes: ["dist/client.js", 10_000],
  onnx_gzip_bytes: ["dist/onnx.js", 10_000],
  adapters_gzip_bytes: ["dist/adapters.js", 6_000],
  decide_gzip_bytes: ["dist/decide.js", 8_000],
  drafts_gzip_bytes: ["dist/drafts.js", 7_200],
  images_gzip_bytes: ["dist/images.js", 16_500],
  videos_gzip_bytes: ["dist/videos.js", 6_100],
  audio_gzip_bytes: ["dist/audio.js", 14_700],
  // Without audio.js, which it imports.
  voice_gzip_bytes: ["dist/voice.js", 5_500],
  attachments_gzip_bytes: ["dist/attachments.js", 3_500],
  experts_gzip_bytes: ["dist/experts.js", 3_000],
  // It is all that a page loads before it decides.
  probe_gzip_bytes: ["dist/probe.js", 36_600],
  catalog_gzip_bytes: ["dist/catalog.js", 4_500],
  tuning_gzip_bytes: ["dist/tuning.js", 4_600],
  encoders_gzip_bytes: ["dist/encoders.js", 20_800],
  choose_encoder_gzip_bytes: ["dist/choose-encoder.js", 5_500],
  // It contains the wasm of xgrammar.
  grammar_gzip_bytes: ["dist/grammar.js", 405_000],
  prefixes_gzip_bytes: ["dist/prefixes.js", 5_000],
  agent_gzip_bytes: ["dist/agent.js", 13_500],
  journal_gzip_bytes: ["dist/journal.js", 8_000],
  receipts_gzip_bytes: ["dist/receipts.js", 4_000],
  hybrid_gzip_bytes: ["dist/hybrid.js", 34_900],
  hybrid_encoding_gzip_bytes: ["dist/hybrid_encoding.js", 5_600],
  hybrid_decisions_gzip_bytes: ["dist/hybrid_decisions.js", 10_000],
  describer_gzip_bytes: ["dist/describer.js", 10_000],
  masks_gzip_bytes: ["dist/masks.js", 12_500],
  finder_gzip_bytes: ["dist/finder.js", 3_000],
  parts_gzip_bytes: ["dist/parts.js", 1_000],
  speculation_gzip_bytes: ["dist/speculation.js", 5_000],
  prefill_gzip_bytes: ["dist/prefill.js", 9_000],
  language_model_gzip_bytes: ["dist/language-model.js", 8_200],
  retrieval_gzip_bytes: ["dist/retrieval.js", 18_000],
  webllm_gzip_bytes: ["dist/webllm.js", 103_000],
  // The adapters, without their libraries.
  fetch_gzip_bytes: ["dist/fetch.js", 3_000],
  ai_sdk_gzip_bytes: ["dist/ai_sdk.js", 5_000],
  langchain_gzip_bytes: ["dist/langchain.js", 4_000],
  react_gzip_bytes: ["dist/react.js", 4_000],
};

const sizes = {};
for (const [name, [file]] of Object.entries(FILES)) sizes[name] = gzipSync(await readFile(file), { level: 9 }).length;

if (process.argv.includes("--json")) console.log(JSON.stringify(sizes));
else
  for (const [name, [file, limit]] of Object.entries(FILES))
    console.log(`${file}: ${sizes[name]} bytes gzipped, at most ${limit}`);

if (!process.argv.includes("--json")) await printPageSizes();

/**
 * Prints the sizes of the chat page's scripts: those that it loads at the start, with their imports, and those that it
 * loads when they are needed.
 */
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

const tooLarge = Object.entries(FILES).filter(([name, [, limit]]) => sizes[name] > limit);
for (const [name, [file, limit]] of tooLarge) console.error(`${file} is ${sizes[name] - limit} bytes too large`);
process.exitCode = tooLarge.length > 0 ? 1 : 0;

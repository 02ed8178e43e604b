// Usage: node transformers_js_transcript.mjs FOLDER SAMPLES. Loads the folder with Transformers.js as its users do, and
// prints JSON: the text of each sound in SAMPLES, a file with lists of samples at 16 kHz.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(new URL("../../../web/package.json", import.meta.url));
const { env, pipeline } = require("@huggingface/transformers");
env.allowRemoteModels = false;
env.localModelPath = "/";
const [folder, file] = process.argv.slice(2);
const transcribe = await pipeline("automatic-speech-recognition", folder);
const texts = [];
for (const samples of JSON.parse(readFileSync(file, "utf-8"))) {
  texts.push((await transcribe(Float32Array.from(samples))).text);
}
console.log(JSON.stringify(texts));
await transcribe.dispose();

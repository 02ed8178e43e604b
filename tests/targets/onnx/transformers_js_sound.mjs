// Usage: node transformers_js_sound.mjs FOLDER INPUTS COUNT LANGUAGE. Loads the folder with Transformers.js and prints
// JSON: the first COUNT tokens that it writes for the frames in INPUTS, a file with a tensor, and the dims of the frames
// that the folder's processor makes of half a second of silence.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(new URL("../../../web/package.json", import.meta.url));
const { AutoProcessor, Tensor, WhisperForConditionalGeneration, env } = require("@huggingface/transformers");
env.allowRemoteModels = false;
env.localModelPath = "/";
const [folder, file, count, language] = process.argv.slice(2);
const { dims, data } = JSON.parse(readFileSync(file, "utf-8"));
const model = await WhisperForConditionalGeneration.from_pretrained(folder);
const inputs = new Tensor("float32", Float32Array.from(data), dims);
const options = { language, task: "transcribe", max_new_tokens: Number(count), do_sample: false };
const output = await model.generate({ inputs, ...options });
const processor = await AutoProcessor.from_pretrained(folder);
const { input_features } = await processor(new Float32Array(8000));
console.log(JSON.stringify({ tokens: output.tolist()[0].map(Number), frames: input_features.dims }));
await model.dispose();

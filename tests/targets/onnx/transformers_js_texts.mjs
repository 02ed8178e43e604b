// Usage: node transformers_js_texts.mjs VECTORS CLASSES TEXT... Prints a JSON list: the mean vectors of the texts, from
// the pipeline for features in the first folder, and the labels of each text, from that for classes in the second one.
import { createRequire } from "node:module";

const require = createRequire(new URL("../../../web/package.json", import.meta.url));
const { pipeline, env } = require("@huggingface/transformers");
env.allowRemoteModels = false;
env.localModelPath = "/";
const [vectors, classes, ...texts] = process.argv.slice(2);
const extract = await pipeline("feature-extraction", vectors);
const found = await extract(texts, { pooling: "mean", normalize: true });
const classify = await pipeline("text-classification", classes);
console.log(JSON.stringify([found.tolist(), await classify(texts, { top_k: null })]));

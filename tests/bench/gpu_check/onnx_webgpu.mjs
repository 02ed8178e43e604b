// Runs an ONNX bundle's graph on onnxruntime-node's WebGPU provider, as other software would, greedily and token by
// token: node onnx_webgpu.mjs GRAPH REQUEST.json
//
// The request is a list of {prompt_ids, count}. Printed as JSON: the version of ONNX Runtime and the new tokens of each.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(new URL("../../../web/package.json", import.meta.url));
const ort = require("onnxruntime-node");
const PAST = "past_key_values";
const ARRAYS = { float32: Float32Array, float16: Uint16Array };

/** The number with the bits of a float16 (IEEE 754 binary16). */
function float16(bits) {
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  const size = exponent === 0 ? fraction * 2 ** -24 : (1 + fraction / 1024) * 2 ** (exponent - 15);
  const value = exponent === 31 ? (fraction === 0 ? Infinity : NaN) : size;
  return bits >> 15 ? -value : value;
}

/** The likeliest token of the last row. Depending on Node.js, float16 are bits or numbers. */
function largest({ type, data, dims }) {
  const row = data.subarray(data.length - dims[dims.length - 1]);
  const numbers = type === "float16" && row instanceof Uint16Array ? Array.from(row, float16) : row;
  if (numbers.some((number) => !Number.isFinite(number))) throw new Error("the logits are not finite");
  return numbers.indexOf(numbers.reduce((most, number) => Math.max(most, number), -Infinity));
}

function tokens(ids) {
  return new ort.Tensor("int64", BigInt64Array.from(ids, BigInt), [1, ids.length]);
}

function emptyCache(session) {
  const entries = session.inputMetadata.filter(({ name }) => name.startsWith(PAST));
  return Object.fromEntries(
    entries.map(({ name, type, shape }) => [
      name,
      new ort.Tensor(type, new ARRAYS[type](0), [1, shape[1], 0, shape[3]]),
    ]),
  );
}

async function greedy(session, prompt, count) {
  let cache = emptyCache(session);
  let ids = prompt;
  let length = 0;
  const found = [];
  while (found.length < count) {
    length += ids.length;
    const mask = tokens(new Array(length).fill(1));
    const results = await session.run({ input_ids: tokens(ids), attention_mask: mask, ...cache });
    cache = Object.fromEntries(Object.keys(cache).map((name) => [name, results[name.replace(PAST, "present")]]));
    ids = [largest(results.logits)];
    found.push(ids[0]);
  }
  return found;
}

const [, , graph, request] = process.argv;
const session = await ort.InferenceSession.create(graph, { executionProviders: ["webgpu"], logSeverityLevel: 3 });
const answers = [];
for (const { prompt_ids, count } of JSON.parse(readFileSync(request, "utf8"))) {
  answers.push(await greedy(session, prompt_ids, count));
}
console.log(JSON.stringify({ onnxruntime: ort.env.versions.node, answers }));
process.exit(0);

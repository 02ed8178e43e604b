// Usage: node transformers_js_images.mjs FOLDER INPUTS COUNT WIDTH HEIGHT TEXT. Loads the folder with Transformers.js
// and prints JSON: the COUNT tokens of the greedy continuation of INPUTS, a file with tensors by name, if it has any; the tokens that
// the folder's processor makes of TEXT and a grey picture of WIDTH x HEIGHT, the shape of its pixels, and the greedy
// continuation of these; and the same for a text alone.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(new URL("../../../web/package.json", import.meta.url));
const { AutoModelForImageTextToText, AutoProcessor, RawImage, Tensor, env } = require("@huggingface/transformers");
env.allowRemoteModels = false;
env.localModelPath = "/";
const [folder, file, count, width, height, text] = process.argv.slice(2);
const tensor = ({ type, dims, data }) =>
  new Tensor(
    type,
    type === "int64" ? BigInt64Array.from(data, BigInt) : type === "bool" ? data : Float32Array.from(data),
    dims,
  );
const inputs = Object.fromEntries(
  Object.entries(JSON.parse(readFileSync(file, "utf-8"))).map(([name, value]) => [name, tensor(value)]),
);
const model = await AutoModelForImageTextToText.from_pretrained(folder);
const continued = async (given) => {
  const output = await model.generate({ ...given, max_new_tokens: Number(count), do_sample: false });
  return output.tolist()[0].map(Number).slice(given.input_ids.dims[1]);
};
const tokens = inputs.input_ids && (await continued(inputs));
const processor = await AutoProcessor.from_pretrained(folder);
const picture = new RawImage(new Uint8ClampedArray(width * height * 3).fill(90), Number(width), Number(height), 3);
const first = model.config.model_type === "lfm2_vl";
const made = await (first ? processor([picture], text) : processor(text, [picture]));
const plain = processor.tokenizer("Say something.");
const [ids, plainIds] = [made, plain].map((each) => each.input_ids.tolist()[0].map(Number));
const [answer, plainAnswer] = [await continued(made), await continued(plain)];
console.log(JSON.stringify({ tokens, ids, pixels: made.pixel_values.dims, answer, plainIds, plainAnswer }));
await model.dispose();

// Usage: node transformers_js.mjs FOLDER TEXT COUNT. Loads a folder with Transformers.js as it is and prints, as JSON, the text's tokens and
// the COUNT that follow greedily.
import { createRequire } from "node:module";

const require = createRequire(new URL("../../../web/package.json", import.meta.url));
const { AutoModelForCausalLM, AutoTokenizer, env } = require("@huggingface/transformers");
env.allowRemoteModels = false;
env.localModelPath = "/";
const [folder, text, count] = process.argv.slice(2);
const model = await AutoModelForCausalLM.from_pretrained(folder);
const tokenizer = await AutoTokenizer.from_pretrained(folder);
const inputs = tokenizer(text, { add_special_tokens: false });
const output = await model.generate({ ...inputs, max_new_tokens: Number(count), do_sample: false });
const ids = output.tolist()[0].map(Number);
const length = inputs.input_ids.dims[1];
const chat = tokenizer.apply_chat_template([{ role: "user", content: text }], { tokenize: false });
console.log(JSON.stringify({ prompt: ids.slice(0, length), tokens: ids.slice(length), chat }));

// Usage: node transformers_js.mjs TEXT COUNT FOLDER... Loads each folder with Transformers.js and prints a JSON list:
// the text's tokens, the COUNT tokens of the greedy continuation, and the text as a chat; or the error of a folder that
// Transformers.js refuses.
import { createRequire } from "node:module";

const require = createRequire(new URL("../../../web/package.json", import.meta.url));
const { AutoModelForCausalLM, AutoTokenizer, env } = require("@huggingface/transformers");
env.allowRemoteModels = false;
env.localModelPath = "/";
const [text, count, ...folders] = process.argv.slice(2);
const answers = [];
for (const folder of folders) {
  let model;
  try {
    model = await AutoModelForCausalLM.from_pretrained(folder);
  } catch (error) {
    answers.push({ error: error.message });
    continue;
  }
  const tokenizer = await AutoTokenizer.from_pretrained(folder);
  const inputs = tokenizer(text, { add_special_tokens: false });
  const output = await model.generate({ ...inputs, max_new_tokens: Number(count), do_sample: false });
  const ids = output.tolist()[0].map(Number);
  const length = inputs.input_ids.dims[1];
  const chat = tokenizer.apply_chat_template([{ role: "user", content: text }], { tokenize: false });
  answers.push({ prompt: ids.slice(0, length), tokens: ids.slice(length), chat });
  await model.dispose();
}
console.log(JSON.stringify(answers));

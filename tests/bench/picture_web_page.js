// The page of bench_picture_web.py: loads engines by name, and asks them about pictures.

import { Engine } from "./nearfar.js";
import { AutoModelForImageTextToText, AutoProcessor, RawImage, env } from "./transformers.min.js";

const engines = new Map();
env.allowRemoteModels = false;
env.allowLocalModels = true;
env.localModelPath = "./models/";
env.useBrowserCache = false;
env.backends.onnx.wasm.wasmPaths = new URL("./ort/", location.href).href;

const LOADERS = {
  nearfar: async ({ bundle }) => {
    const engine = await Engine.load(`./${bundle}/`, { store: false });
    return async (url, text, count) => {
      const content = [
        { type: "image_url", image_url: { url } },
        { type: "text", text },
      ];
      const options = { temperature: 0, max_tokens: count, return_token_ids: true };
      const answer = await engine.chat.completions.create({ messages: [{ role: "user", content }], ...options });
      return { prompt: answer.prompt_token_ids, tokens: answer.choices[0].token_ids };
    };
  },
  transformers: async ({ model, device, threads }) => {
    env.backends.onnx.wasm.numThreads = threads;
    const processor = await AutoProcessor.from_pretrained(model);
    const loaded = await AutoModelForImageTextToText.from_pretrained(model, { device, dtype: "fp32" });
    return async (url, text, count) => {
      const messages = [{ role: "user", content: [{ type: "image" }, { type: "text", text }] }];
      const prompt = processor.apply_chat_template(messages, { add_generation_prompt: true });
      const inputs = await processor(prompt, [await RawImage.fromURL(url)], { add_special_tokens: false });
      const output = await loaded.generate({ ...inputs, max_new_tokens: count, do_sample: false });
      const ids = inputs.input_ids.tolist()[0].map(Number);
      return { prompt: ids, tokens: output.tolist()[0].map(Number).slice(ids.length) };
    };
  },
};

window.load = async (name, { kind, ...options }) => {
  engines.set(name, await LOADERS[kind](options));
};
window.ask = (name, ...question) => engines.get(name)(...question);
window.time = async (name, ...question) => {
  const start = performance.now();
  await engines.get(name)(...question);
  return performance.now() - start;
};
window.facts = async () => {
  const { info } = await navigator.gpu.requestAdapter();
  return {
    adapter: [info.vendor, info.architecture, info.description].filter(Boolean).join(" "),
    isolated: window.crossOriginIsolated,
    browser: navigator.userAgent,
  };
};
document.body.dataset.state = "ready";

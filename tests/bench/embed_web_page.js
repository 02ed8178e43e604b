// The page of bench_embed_web.py: loads engines by name, and embeds texts with them.

import { Engine } from "./nearfar.js";
import { env, pipeline } from "./transformers.min.js";

const engines = new Map();
env.allowRemoteModels = false;
env.allowLocalModels = true;
env.localModelPath = "./models/";
env.useBrowserCache = false;
env.backends.onnx.wasm.wasmPaths = new URL("./ort/", location.href).href;

const LOADERS = {
  nearfar: async ({ bundle }) => {
    const engine = await Engine.load(`./${bundle}/`, { store: false });
    return async (input) => (await engine.embeddings.create({ input })).data.map(({ embedding }) => embedding);
  },
  transformers: async ({ model, device, dtype, threads, batch }) => {
    env.backends.onnx.wasm.numThreads = threads;
    const extract = await pipeline("feature-extraction", model, { device, dtype });
    // Texts of a batch are padded to the longest of them.
    return async (texts) => {
      const order = texts.map((_, index) => index).sort((a, b) => texts[a].length - texts[b].length);
      const vectors = new Array(texts.length);
      for (let start = 0; start < order.length; start += batch) {
        const some = order.slice(start, start + batch);
        const found = await extract(
          some.map((index) => texts[index]),
          { pooling: "mean", normalize: true },
        );
        found.tolist().forEach((vector, row) => (vectors[some[row]] = vector));
      }
      return vectors;
    };
  },
};

window.load = async (name, { kind, ...options }) => {
  engines.set(name, await LOADERS[kind](options));
};
window.embed = (name, texts) => engines.get(name)(texts);
window.time = async (name, texts) => {
  const start = performance.now();
  await engines.get(name)(texts);
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

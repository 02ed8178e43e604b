import * as webllm from "@nearfar/web/webllm";
import { selectedModel } from "./app_config.js";

// The first conversation gets the logits unchanged, each later one is forced to a single token.
let conversations = 0;
const registry = new Map<string, webllm.LogitProcessor>();
registry.set(selectedModel, {
  processLogits: (logits) => (conversations === 1 ? logits : logits.map((_, token) => (token === 40 ? 1 : -Infinity))),
  processSampledToken: () => undefined,
  resetState: () => {
    conversations++;
  },
});

const handler = new webllm.WebWorkerMLCEngineHandler();
handler.setLogitProcessorRegistry(registry);
self.onmessage = handler.onmessage;

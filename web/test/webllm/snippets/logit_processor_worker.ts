import * as webllm from "@nearfar/web/webllm";
import { selectedModel } from "./app_config.js";

const registry = new Map<string, webllm.LogitProcessor>();
registry.set(selectedModel, {
  processLogits: (logits) => {
    logits.fill(-100, 0, 5);
    return logits;
  },
  processSampledToken: () => undefined,
  resetState: () => undefined,
});

const handler = new webllm.WebWorkerMLCEngineHandler();
handler.setLogitProcessorRegistry(registry);
self.onmessage = handler.onmessage;

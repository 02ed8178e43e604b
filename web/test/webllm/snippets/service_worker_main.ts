import * as webllm from "@nearfar/web/webllm";
import type { MLCEngineInterface } from "@nearfar/web/webllm";
import { appConfig, selectedModel } from "./app_config.js";

export async function main() {
  if ("serviceWorker" in navigator) {
    await navigator.serviceWorker.register(
      new URL("./service_worker.js", import.meta.url), // worker script
      { type: "module" },
    );
  }
  const texts: string[] = [];
  const engine: MLCEngineInterface = await webllm.CreateServiceWorkerMLCEngine(
    selectedModel,
    { appConfig, initProgressCallback: (report) => texts.push(report.text) }, // engineConfig
  );
  const request: webllm.ChatCompletionRequest = {
    messages: [{ role: "user", content: "what is 27 + 58?" }],
    n: 1,
    temperature: 0,
    max_tokens: 256,
  };
  const reply0 = await engine.chat.completions.create(request);
  // When a later page connects, the model is already loaded.
  const again: webllm.ServiceWorkerMLCEngine = await webllm.CreateServiceWorkerMLCEngine(selectedModel, {
    appConfig,
    initProgressCallback: (report) => texts.push(report.text),
  });
  const reply1 = await again.chat.completions.create(request);
  return {
    contents: [reply0, reply1].map((reply) => reply.choices[0].message.content),
    last: texts.at(-1),
    missed: again.missedHeartbeat,
  };
}

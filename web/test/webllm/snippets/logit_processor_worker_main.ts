import * as webllm from "@nearfar/web/webllm";
import { appConfig, selectedModel } from "./app_config.js";

export async function main() {
  const worker = new Worker(new URL("./logit_processor_worker.js", import.meta.url), { type: "module" });
  const engine: webllm.MLCEngineInterface = await webllm.CreateWebWorkerMLCEngine(worker, selectedModel, { appConfig });
  const contents: Array<string | null> = [];
  for (let conversation = 0; conversation < 2; conversation++) {
    const reply = await engine.chat.completions.create({
      messages: [{ role: "user", content: "what is 27 + 58?" }],
      temperature: 0,
      max_tokens: 16,
    });
    contents.push(reply.choices[0].message.content);
  }
  await engine.unload();
  worker.terminate();
  return contents;
}

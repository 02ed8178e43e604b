import * as webllm from "@nearfar/web/webllm";
import { appConfig, selectedModel } from "./app_config.js";

export async function main() {
  const engine = await webllm.CreateMLCEngine(selectedModel, { appConfig });
  const chunks = await engine.chat.completions.create({
    messages: [{ role: "user", content: "c" }],
    stream: true,
    temperature: 0,
    logit_bias: { "5": -100 },
  });
  let lastReason: webllm.ChatCompletionFinishReason | null = null;
  let count = 0;
  for await (const chunk of chunks) {
    if (++count === 3) {
      engine.interruptGenerate();
    }
    lastReason = chunk.choices[0]?.finish_reason ?? lastReason;
  }
  const message = await engine.getMessage();
  await engine.unload();
  return { lastReason, some: message.length > 0 && message.length < 100 };
}

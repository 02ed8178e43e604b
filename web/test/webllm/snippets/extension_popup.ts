import { CreateExtensionServiceWorkerMLCEngine } from "@nearfar/web/webllm";
import type { ChatCompletionMessageParam, MLCEngineInterface } from "@nearfar/web/webllm";
import { appConfig, selectedModel } from "./app_config.js";

export async function main() {
  const engine: MLCEngineInterface = await CreateExtensionServiceWorkerMLCEngine(
    selectedModel,
    { appConfig, onDisconnect: () => console.log("gone") },
    { temperature: 0 },
  );
  const chatHistory: ChatCompletionMessageParam[] = [];
  chatHistory.push({ role: "user", content: "what is 27 + 58?" });
  let curMessage = "";
  const completion = await engine.chat.completions.create({ stream: true, messages: chatHistory });
  for await (const chunk of completion) {
    const curDelta = chunk.choices[0].delta.content;
    if (curDelta) {
      curMessage += curDelta;
    }
  }
  const finalMessage = await engine.getMessage();
  await engine.unload();
  return [curMessage, finalMessage];
}

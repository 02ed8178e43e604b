import * as webllm from "@nearfar/web/webllm";
import { appConfig, selectedModel } from "./app_config.js";

export async function main() {
  const engine: webllm.MLCEngineInterface = await webllm.CreateMLCEngine(selectedModel, { appConfig });
  const request: webllm.ChatCompletionRequest = {
    stream: false,
    messages: [{ role: "user", content: "Write a short JSON object." }],
    n: 1,
    max_tokens: 24,
    temperature: 0,
    response_format: { type: "json_object" } as webllm.ResponseFormat,
  };
  const reply = await engine.chatCompletion(request);
  await engine.unload();
  return JSON.parse(reply.choices[0].message.content!) as unknown;
}

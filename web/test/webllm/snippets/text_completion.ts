import * as webllm from "@nearfar/web/webllm";
import { appConfig, selectedModel } from "./app_config.js";

export async function main() {
  const engine: webllm.MLCEngineInterface = await webllm.CreateMLCEngine(selectedModel, {
    appConfig,
    logLevel: "INFO",
  });
  const reply0 = await engine.completions.create({
    prompt: "a",
    echo: true,
    n: 1,
    max_tokens: 8,
    logprobs: true,
    top_logprobs: 2,
    temperature: 0,
  });
  const request: webllm.CompletionCreateParamsStreaming = { stream: true, prompt: "a", max_tokens: 8, temperature: 0 };
  let streamed = "";
  for await (const chunk of await engine.completion(request)) {
    streamed += chunk.choices[0]?.text ?? "";
  }
  await engine.unload();
  const first = reply0.choices[0].logprobs?.content?.[0];
  return {
    text: reply0.choices[0].text,
    streamed,
    first: first && [first.token, first.bytes, first.top_logprobs.length],
    usage: reply0.usage?.total_tokens,
  };
}

import * as webllm from "@nearfar/web/webllm";
import { appConfig, selectedModel } from "./app_config.js";

export async function main() {
  const engine: webllm.MLCEngineInterface = await webllm.CreateMLCEngine(selectedModel, { appConfig: appConfig });
  const request: webllm.ChatCompletionRequest = {
    stream: true,
    stream_options: { include_usage: true },
    messages: [{ role: "user", content: "what is 27 + 58?" }],
    logprobs: true,
    top_logprobs: 2,
    temperature: 0,
    max_tokens: 256,
  };
  const asyncChunkGenerator = await engine.chat.completions.create(request);
  let message = "";
  let usage: webllm.CompletionUsage | undefined = undefined;
  let logprobs = 0;
  for await (const chunk of asyncChunkGenerator) {
    message += chunk.choices[0]?.delta?.content || "";
    logprobs += chunk.choices[0]?.logprobs?.content?.length ?? 0;
    if (chunk.usage) {
      usage = chunk.usage; // only the last chunk has usage
    }
  }
  const extra = (usage as webllm.CompletionUsage | undefined)?.extra;
  const full = await engine.getMessage();
  const stats = await engine.runtimeStatsText();
  await engine.unload();
  return {
    message,
    full,
    stats,
    logprobs,
    speeds: extra && [
      extra.prefill_tokens_per_s,
      extra.decode_tokens_per_s,
      extra.e2e_latency_s,
      extra.time_to_first_token_s,
    ],
  };
}

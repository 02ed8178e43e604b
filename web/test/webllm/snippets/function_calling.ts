import * as webllm from "@nearfar/web/webllm";
import { appConfig, selectedModel } from "./app_config.js";

const tools: Array<webllm.ChatCompletionTool> = [
  {
    type: "function",
    function: {
      name: "get_current_weather",
      description: "Get the current weather in a given location",
      parameters: {
        type: "object",
        properties: { location: { type: "string" }, unit: { type: "string", enum: ["celsius", "fahrenheit"] } },
        required: ["location"],
      },
    },
  },
];

export async function main() {
  const engine: webllm.MLCEngineInterface = await webllm.CreateMLCEngine(selectedModel, { appConfig });
  const request: webllm.ChatCompletionRequest = {
    stream: true,
    stream_options: { include_usage: true },
    messages: [{ role: "user", content: "What is the current weather in celsius in Pittsburgh and Tokyo?" }],
    tool_choice: "auto",
    tools: tools,
  };
  const calls: webllm.ChatCompletionChunk.Choice.Delta.ToolCall[] = [];
  let lastChunk: webllm.ChatCompletionChunk | undefined;
  for await (const chunk of await engine.chat.completions.create(request)) {
    if (!chunk.usage) {
      lastChunk = chunk;
    }
    calls.push(...(chunk.choices[0]?.delta.tool_calls ?? []));
  }
  await engine.unload();
  return {
    name: calls[0]?.function?.name,
    arguments: calls.map((call) => call.function?.arguments ?? "").join(""),
    reason: lastChunk!.choices[0].finish_reason,
  };
}

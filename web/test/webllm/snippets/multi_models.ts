import * as webllm from "@nearfar/web/webllm";
import { appConfig, otherModel, selectedModel } from "./app_config.js";

const requestOf = (model: string): webllm.ChatCompletionRequestStreaming => ({
  stream: true,
  stream_options: { include_usage: true },
  messages: [{ role: "user", content: "what is 27 + 58?" }],
  model: model, // required, as there are two
  temperature: 0,
  max_tokens: 32,
});

export async function main() {
  const engine = await webllm.CreateMLCEngine([selectedModel, otherModel], { appConfig }, [
    { repetition_penalty: 1 },
    { top_p: 1 },
  ]);
  const answer = async (model: string) => {
    let message = "";
    for await (const chunk of await engine.chat.completions.create(requestOf(model))) {
      message += chunk.choices[0]?.delta?.content || "";
    }
    return [message, await engine.getMessage(model)];
  };
  const answers = await Promise.all([answer(selectedModel), answer(otherModel)]);
  const ambiguous = await engine.getMessage().catch((error: Error) => error.message);
  await engine.unload();
  return { answers, ambiguous };
}

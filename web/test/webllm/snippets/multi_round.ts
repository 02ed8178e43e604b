import * as webllm from "@nearfar/web/webllm";
import { appConfig, selectedModel } from "./app_config.js";

export async function main() {
  const engine = new webllm.MLCEngine({ appConfig });
  await engine.reload(selectedModel, { context_window_size: 128, temperature: 0 });
  const messages: webllm.ChatCompletionMessageParam[] = [{ role: "user", content: "what is 27 + 58?" }];
  const reply0 = await engine.chat.completions.create({ messages, n: 1 });
  messages.push({ role: "assistant", content: reply0.choices[0].message.content });
  messages.push({ role: "user", content: "what is 1 + 1?" });
  const reply1 = await engine.chat.completions.create({ messages, seed: 0 });
  const replyMessage: string = await engine.getMessage();
  await engine.resetChat();
  const afterReset = await engine.getMessage();
  await engine.unload();
  return {
    first: reply0.choices[0].message.content,
    second: reply1.choices[0].message.content,
    replyMessage,
    afterReset,
  };
}

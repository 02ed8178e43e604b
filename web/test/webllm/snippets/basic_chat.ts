import { CreateMLCEngine } from "@nearfar/web/webllm";
import { appConfig, selectedModel } from "./app_config.js";

export async function main() {
  const progress: string[] = [];
  const initProgressCallback = (report: { text: string }) => {
    progress.push(report.text);
  };
  const engine = await CreateMLCEngine(selectedModel, { initProgressCallback: initProgressCallback, appConfig });
  const reply = await engine.chat.completions.create({
    messages: [
      { role: "system", content: "" },
      { role: "user", content: "what is 27 + 58?" },
    ],
    temperature: 0,
  });
  console.log(reply.choices[0].message, reply.usage);
  await engine.unload();
  return {
    content: reply.choices[0].message.content,
    model: reply.model,
    tokens: reply.usage?.completion_tokens,
    finished: progress.at(-1),
  };
}

import * as webllm from "@nearfar/web/webllm";
import { appConfig, selectedModel } from "./app_config.js";

export async function main() {
  const engine: webllm.MLCEngineInterface = await webllm.CreateMLCEngine(selectedModel, { appConfig });
  const messages: webllm.ChatCompletionMessageParam[] = [
    {
      role: "user",
      content: [
        { type: "text", text: "List the items in the image." },
        { type: "image_url", image_url: { url: "data:image/png;base64,AAAA" } },
      ],
    },
  ];
  const refused = await engine.chat.completions.create({ messages }).catch((error: Error) => error.message);
  await engine.unload();
  return refused;
}

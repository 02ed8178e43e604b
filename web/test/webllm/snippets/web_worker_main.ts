import { CreateWebWorkerMLCEngine } from "@nearfar/web/webllm";
import type { InitProgressReport } from "@nearfar/web/webllm";
import { appConfig, selectedModel } from "./app_config.js";

export async function main() {
  const worker = new Worker(new URL("./web_worker.js", import.meta.url), { type: "module" });
  const reports: InitProgressReport[] = [];
  const engine = await CreateWebWorkerMLCEngine(
    worker,
    selectedModel,
    { appConfig, initProgressCallback: (report) => reports.push(report) },
    { temperature: 0 },
  );
  const messages = [{ role: "user" as const, content: "what is 27 + 58?" }];
  const reply = await engine.chat.completions.create({ messages });
  let streamed = "";
  for await (const chunk of await engine.chat.completions.create({
    messages,
    stream: true,
    stream_options: { include_usage: true },
  })) {
    streamed += chunk.choices[0]?.delta.content || "";
    if (chunk.usage) console.log(chunk.usage.extra.decode_tokens_per_s);
  }
  const refused = await engine.getMessage("nobody").catch((error: Error) => error.message);
  const message = await engine.getMessage();
  await engine.unload();
  worker.terminate();
  return { content: reply.choices[0].message.content, streamed, message, refused, progress: reports.at(-1)?.progress };
}

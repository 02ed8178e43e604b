import * as webllm from "@nearfar/web/webllm";
import { appConfig } from "./app_config.js";

/** The parts of WebLLM's chat example that use its API. */
export class ChatUI {
  private engine: webllm.MLCEngineInterface | webllm.WebWorkerMLCEngine;
  private config: webllm.AppConfig = appConfig;
  private chatHistory: webllm.ChatCompletionMessageParam[] = [];
  private chatRequestChain: Promise<void> = Promise.resolve();
  readonly selectedModel: string;
  label = "";

  constructor(engine: webllm.MLCEngineInterface) {
    this.engine = engine;
    this.selectedModel = this.config.model_list[0].model_id;
  }

  async isLimited(): Promise<boolean> {
    const [maxStorageBufferBindingSize, gpuVendor] = await Promise.all([
      this.engine.getMaxStorageBufferBindingSize(),
      this.engine.getGPUVendor(),
    ]);
    const item = this.config.model_list[0];
    return (
      (gpuVendor.length != 0 && gpuVendor === "qualcomm") ||
      maxStorageBufferBindingSize < (item.buffer_size_required_bytes ?? 1 << 20)
    );
  }

  ask(prompt: string): Promise<void> {
    this.chatRequestChain = this.chatRequestChain.then(async () => {
      this.engine.setInitProgressCallback((report: webllm.InitProgressReport) => {
        this.label = report.text;
      });
      await this.engine.reload(this.selectedModel);
      this.chatHistory.push({ role: "user", content: prompt });
      let usage: webllm.CompletionUsage | undefined = undefined;
      const completion = await this.engine.chat.completions.create({
        stream: true,
        messages: this.chatHistory,
        stream_options: { include_usage: true },
        temperature: 0,
        extra_body: this.selectedModel.startsWith("Qwen3") ? { enable_thinking: false } : undefined,
      });
      for await (const chunk of completion) {
        if (chunk.usage) {
          usage = chunk.usage;
        }
      }
      if (usage) {
        const { prompt_tokens, completion_tokens, extra } = usage as webllm.CompletionUsage;
        this.label =
          `prompt_tokens: ${prompt_tokens}, completion_tokens: ${completion_tokens}, ` +
          `prefill: ${extra.prefill_tokens_per_s.toFixed(4)} tokens/sec`;
      }
      this.chatHistory.push({ role: "assistant", content: await this.engine.getMessage() });
      this.engine.interruptGenerate();
      await this.engine.resetChat();
    });
    return this.chatRequestChain;
  }

  get last(): webllm.ChatCompletionMessageParam {
    return this.chatHistory[this.chatHistory.length - 1];
  }
}

export async function main() {
  const engine: webllm.MLCEngineInterface = new webllm.MLCEngine({ appConfig, logLevel: "INFO" });
  engine.setLogLevel("WARN");
  const ui = new ChatUI(engine);
  const isLimited = await ui.isLimited();
  await ui.ask("what is 27 + 58?");
  await engine.unload();
  return { isLimited, last: ui.last, label: ui.label };
}

import * as webllm from "@nearfar/web/webllm";
import { appConfig, selectedModel } from "./app_config.js";

export async function main() {
  const config: webllm.AppConfig = {
    ...appConfig,
    model_list: appConfig.model_list.map((record) => ({ ...record, model_type: webllm.ModelType.embedding })),
  };
  const engine: webllm.MLCEngineInterface = await webllm.CreateMLCEngine(selectedModel, { appConfig: config });
  const inputs: string[] = ["a", "ab"];
  const reply: webllm.CreateEmbeddingResponse = await engine.embeddings.create({ input: inputs, model: selectedModel });
  await engine.unload();
  const vectors: number[][] = reply.data.map((embedding) => embedding.embedding);
  return {
    largest: vectors.map((vector) => vector.indexOf(Math.max(...vector))),
    model: reply.model,
    fast: reply.usage.extra.prefill_tokens_per_s > 0,
  };
}

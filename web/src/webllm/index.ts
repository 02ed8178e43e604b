// @nearfar/web/webllm: WebLLM's entry points. Only the import changes: "@mlc-ai/web-llm" becomes "@nearfar/web/webllm".

import { connectEngine } from "../worker/connect_engine.js";
import type { WorkerLike } from "../worker/connect_engine.js";
import type { ChatOptions, MLCEngineConfig } from "./engine.js";
import { MLCEngine } from "./engine.js";

export { BundleError, DeviceError, NearfarError, RequestError, WorkerError } from "../errors.js";
export type {
  ChatOptions,
  InitProgressCallback,
  InitProgressReport,
  MLCChatCompletion,
  MLCChatCompletionChunk,
  MLCEngineConfig,
  ModelRecord,
} from "./engine.js";
export { MLCEngine } from "./engine.js";

/** An engine on this page with its model loaded. */
export async function CreateMLCEngine(modelId: string | readonly string[], config?: MLCEngineConfig, chatOptions?: ChatOptions): Promise<MLCEngine> {
  const engine = new MLCEngine(config);
  await engine.reload(modelId, chatOptions);
  return engine;
}

/** The same in a worker, whose script calls serveEngine of @nearfar/web/worker in place of WebLLM's handler. */
export async function CreateWebWorkerMLCEngine(
  worker: WorkerLike,
  modelId: string | readonly string[],
  config?: MLCEngineConfig,
  chatOptions?: ChatOptions,
): Promise<MLCEngine> {
  const engine = new MLCEngine(config, (bundle, { signal, onProgress }) => connectEngine(worker, bundle, { signal, onProgress }));
  await engine.reload(modelId, chatOptions);
  return engine;
}

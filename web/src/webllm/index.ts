// @nearfar/web/webllm: WebLLM's API. An application changes only its import, from "@mlc-ai/web-llm" to
// "@nearfar/web/webllm".

export type { ServeOptions } from "../worker/serve_engine.js";
export { BundleError, DeviceError, NearfarError, RequestError, StorageError, WorkerError } from "../errors.js";
export {
  deleteChatConfigInCache,
  deleteModelAllInfoInCache,
  deleteModelInCache,
  deleteModelWasmInCache,
  hasModelInCache,
} from "./cache.js";
export type * from "./chat_types.js";
export type * from "./completion_types.js";
export type { AppConfig, ChatOptions, MLCEngineConfig, ModelRecord, OPFSAccessMode } from "./config.js";
export { ModelType, functionCallingModelIds, modelLibURLPrefix, modelVersion, prebuiltAppConfig } from "./config.js";
export { CreateMLCEngine, MLCEngine } from "./engine.js";
export type { ExtensionMLCEngineConfig, ExtensionPort } from "./extension.js";
export {
  CreateExtensionServiceWorkerMLCEngine,
  ExtensionServiceWorkerMLCEngine,
  ExtensionServiceWorkerMLCEngineHandler,
} from "./extension.js";
export type {
  Chat,
  Completions,
  Embeddings,
  InitProgressCallback,
  InitProgressReport,
  LogLevel,
  LogitProcessor,
  MLCEngineInterface,
} from "./interface.js";
export {
  CreateServiceWorkerMLCEngine,
  ServiceWorkerMLCEngine,
  ServiceWorkerMLCEngineHandler,
} from "./service_worker.js";
export { CreateWebWorkerMLCEngine, WebWorkerMLCEngine } from "./worker_engine.js";
export { WebWorkerMLCEngineHandler } from "./worker_handler.js";

// @nearfar/web: run a language model's bundle in a page, through WebGPU.

export type { EngineApi } from "./api/engine_api.js";
export type {
  Availability,
  EngineLoader,
  LanguageModel,
  LanguageModelCreateOptions,
  LanguageModelFactory,
  LanguageModelPromptOptions,
  SamplingMode,
} from "./api/language_model.js";
export { createLanguageModel } from "./api/language_model.js";
export type { LanguageModelMessage, LanguageModelPrompt } from "./api/language_model_prompt.js";
export { Stream } from "./api/stream.js";
export type * from "./api/types.js";
export type { FinishReason } from "./engine/generate_tokens.js";
export type { EngineInfo, GenerateOptions, GenerationEvent, LoadOptions, LoadProgress, Timings } from "./engine.js";
export { Engine } from "./engine.js";
export type { ErrorCode, ErrorDetails, ErrorJson } from "./errors.js";
export { BundleError, DeviceError, NearfarError, RequestError, WorkerError } from "./errors.js";
export type { Source } from "./runtime/source.js";
export { httpSource } from "./runtime/source.js";
export type { Message } from "./text/chat_template.js";

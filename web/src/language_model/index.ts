// @nearfar/web/language-model: Chrome's Prompt API with an engine of this package, on the page or in a worker.

export type {
  Availability,
  CreateMonitor,
  EngineLoader,
  LanguageModelCreateCoreOptions,
  LanguageModelCreateOptions,
  LanguageModelExpected,
  LanguageModelFactory,
  LanguageModelOptions,
} from "./factory.js";
export { createLanguageModel } from "./factory.js";
export type { LanguageModelMessage, LanguageModelMessageContent, LanguageModelPrompt } from "./prompt.js";
export type { SamplingMode } from "./sampling.js";
export type { LanguageModel, LanguageModelPromptOptions } from "./session.js";
export type { LanguageModelTool } from "./tools.js";

// @nearfar/web: runs a bundle of a language model in a page, on WebGPU.

export type { EngineApi, EngineWithSessions, SessionApi } from "./api/engine_api.js";
export type { AdapterFiles, AdapterOptions } from "./adapters/index.js";
export { Stream } from "./api/stream.js";
export type * from "./api/encoder_types.js";
export type * from "./api/types.js";
export type { EncodersModule } from "./encoders/index.js";
export type { FinishReason, SamplingOptions, TokenRequest } from "./engine/request.js";
export type { EngineInfo } from "./engine.js";
export { Engine } from "./engine.js";
export type { GenerateOptions, GenerationEvent, Timings } from "./generation.js";
export type { LoadOptions, LoadProgress } from "./load_options.js";
export type { Session, SessionOptions } from "./session.js";
export type { MemoryPlan } from "./runtime/memory_plan.js";
export type { ErrorCode, ErrorDetails, ErrorJson } from "./errors.js";
export {
  BundleError,
  DeviceError,
  NearfarError,
  RequestError,
  StorageError,
  Unavailable,
  WorkerError,
} from "./errors.js";
export type { GrammarConstraint } from "./grammar/constraint.js";
export { Grammars } from "./grammar/grammars.js";
export type { GrammarModule } from "./grammar/index.js";
export type { GrammarSource, TagSource } from "./shared/grammar/source.js";
export type { AdapterEntry, DecodeTimes, StepTime, TunedRow, TunedSteps, TuningEntry } from "./runtime/manifest.js";
export type { Notes } from "./runtime/notes.js";
export type { Bytes, Expected, OnBytes, Part, Source } from "./runtime/source.js";
export { httpSource } from "./runtime/source.js";
export type { SelfTestInfo } from "./runtime/trust.js";
export type { StoredBundle } from "./store/bundle_store.js";
export { BundleStore } from "./store/bundle_store.js";
export type { Cache } from "./store/cache.js";
export { cache } from "./store/cache.js";
export type { Message, MessageToolCall } from "./text/chat_template.js";
export type { ToolCallEvent } from "./text/tool_call_stream.js";
export { ToolCallStream } from "./text/tool_call_stream.js";
export type { Tool, ToolChoice, ToolFormat } from "./text/tools.js";
export { toolGrammar } from "./text/tools.js";

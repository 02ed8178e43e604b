// @nearfar/web: run a language model's bundle in a page, through WebGPU.

export type { FinishReason } from "./engine/generate_tokens.js";
export type { EngineInfo, GenerateOptions, GenerationEvent, LoadOptions, LoadProgress, Timings } from "./engine.js";
export { Engine } from "./engine.js";
export type { ErrorCode, ErrorDetails, ErrorJson } from "./errors.js";
export { BundleError, DeviceError, NearfarError, RequestError, StorageError } from "./errors.js";
export type { AdapterEntry, TunedRow, TuningEntry } from "./runtime/manifest.js";
export type { Notes } from "./runtime/notes.js";
export type { Bytes, Expected, OnBytes, Part, Source } from "./runtime/source.js";
export { httpSource } from "./runtime/source.js";
export type { SelfTestInfo } from "./runtime/trust.js";
export type { StoredBundle } from "./store/bundle_store.js";
export { BundleStore } from "./store/bundle_store.js";
export type { Cache } from "./store/cache.js";
export { cache } from "./store/cache.js";
export type { Message } from "./text/chat_template.js";

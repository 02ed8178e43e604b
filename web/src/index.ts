// @nearfar/web: run a language model's bundle in a page, through WebGPU.

export type { FinishReason } from "./engine/generate_tokens.js";
export type { EngineInfo, GenerateOptions, GenerationEvent, LoadOptions, LoadProgress, Timings } from "./engine.js";
export { Engine } from "./engine.js";
export type { ErrorCode, ErrorDetails, ErrorJson } from "./errors.js";
export { BundleError, DeviceError, NearfarError, RequestError, messageOf } from "./errors.js";
export type { GrammarConstraint } from "./grammar/constraint.js";
export { Grammars } from "./grammar/grammars.js";
export type { GrammarSource, TagSource } from "./grammar/source.js";
export type { Source } from "./runtime/source.js";
export { httpSource } from "./runtime/source.js";
export type { Message, MessageToolCall } from "./text/chat_template.js";
export type { ToolCallEvent } from "./text/tool_call_stream.js";
export { ToolCallStream } from "./text/tool_call_stream.js";
export type { Tool, ToolChoice, ToolFormat } from "./text/tools.js";
export { toolGrammar } from "./text/tools.js";

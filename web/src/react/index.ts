// @nearfar/web/react: hooks for React 18 and 19 that load an engine and hold a conversation.

// For Next.js, whose server components do not run hooks.
"use client";

export type { ChatSource } from "../api/chat_source.js";
export {
  BundleError,
  DeviceError,
  NearfarError,
  RequestError,
  StorageError,
  Unavailable,
  WorkerError,
} from "../errors.js";
export type { ChatMessage, ChatSnapshot, ChatStatus, UseChat, UseChatOptions } from "./chat.js";
export { useChat } from "./chat.js";
export type { AgentSnapshot, AgentStatus, MakeAgent, ShownCall, ShownStep, UseAgent } from "./use_agent.js";
export { useAgent } from "./use_agent.js";
export type { EngineState, LoadEngine, UseEngineOptions } from "./use_engine.js";
export { useEngine } from "./use_engine.js";

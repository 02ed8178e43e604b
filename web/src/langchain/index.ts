// @nearfar/web/langchain: a chat model for LangChain.js that runs on this device.

export type { ChatSource } from "../api/chat_source.js";
export { NearfarError, RequestError, Unavailable } from "../errors.js";
export type { ChatNearfarCallOptions, ChatNearfarFields } from "./chat_model.js";
export { ChatNearfar } from "./chat_model.js";

// @nearfar/web/agent: a model that calls tools of the page, of MCP servers and of the application until a task is done.

export type { AgentCall, AgentEvent, AgentMessage, AgentOptions, AgentResult, AgentStep, AskedCall } from "./agent.js";
export { Agent } from "./agent.js";
export type { Bounds, CallOutcome, EndReason } from "../shared/agent/loop.js";
export type { RoutingShares, Stake } from "../shared/agent/stake.js";
export type { Allow } from "../shared/agent/tools.js";
export type {
  AllowOption,
  FunctionToolOptions,
  McpClient,
  McpToolOptions,
  ModelContext,
  PageToolOptions,
  SourceOptions,
  ToolSource,
} from "./tools.js";
export { functionTool, mcpTools, pageTools } from "./tools.js";
export { NearfarError, RequestError, Unavailable } from "../errors.js";

// @nearfar/web/hybrid: one client over an engine on this device and a server.

export type { EngineApi } from "../api/engine_api.js";
export { Stream } from "../api/stream.js";
export type * from "../api/types.js";
export type { ErrorCode, ErrorDetails, ErrorJson } from "../errors.js";
export { BundleError, DeviceError, NearfarError, RequestError, StorageError, Unavailable, WorkerError } from "../errors.js";
export type { Ledger, LedgerStore, Spent } from "./budget.js";
export type { Clock } from "./clock.js";
export type { DeviceHints, DeviceSource } from "./device_hints.js";
export type { Dialect } from "./dialect.js";
export type { FarModel, FarOptions } from "./far.js";
export type { Fetch } from "./far_http.js";
export type { HybridOptions } from "./hybrid.js";
export { Hybrid } from "./hybrid.js";
export type { NearState } from "./near.js";
export type { Policy } from "./policy.js";
export type { HybridParams, HybridParamsNonStreaming, HybridParamsStreaming } from "./request.js";
export type { SocketClass, SocketLike } from "./verify_socket.js";
export type { WireCounts } from "./wire_speculation.js";

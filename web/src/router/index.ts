// @nearfar/web/hybrid: one client over an engine on this device and a server.

export type { EngineApi } from "../api/engine_api.js";
export { Stream } from "../api/stream.js";
export type * from "../api/types.js";
export type { ErrorCode, ErrorDetails, ErrorJson } from "../errors.js";
export {
  BundleError,
  DeviceError,
  NearfarError,
  RequestError,
  StorageError,
  Unavailable,
  WorkerError,
} from "../errors.js";
export type { Ledger, LedgerStore } from "./budget.js";
export type { Spent } from "../shared/decision/costs.js";
export type { Clock } from "./sides/clock.js";
export type { DeviceHints, DeviceSource } from "./device_hints.js";
export type { SoundTranscriber } from "./describer.js";
export type { Dialect } from "./sides/dialect.js";
export type { FarModel, FarOptions } from "./sides/far.js";
export type { Fetch } from "./sides/far_http.js";
export type { MaskedText } from "../api/replies.js";
export type { Confirm, EntityFinder } from "./masks.js";
export type { Embedder } from "./hybrid_completions.js";
export type { HybridOptions } from "./hybrid.js";
export { Hybrid } from "./hybrid.js";
export type { HybridDecideOptions, HybridDecisions } from "./hybrid_decisions.js";
export type { HybridEmbeddingParams, HybridEmbeddings, HybridRerank, HybridRerankParams } from "./hybrid_encoding.js";
export type { NearState } from "./sides/near.js";
export type { Policy } from "../shared/decision/policy.js";
export type { HybridParams, HybridParamsNonStreaming, HybridParamsStreaming } from "./request.js";
export type { SocketClass, SocketLike } from "./sides/verify_socket.js";
export type { WireCounts } from "./sides/wire_speculation.js";

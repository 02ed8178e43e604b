// @nearfar/web/client: for a page whose engine runs in a worker. The small part of the package that such a page needs.

export type { EngineApi, EngineWithSessions, SessionApi } from "../api/engine_api.js";
export type { SessionOptions } from "../session.js";
export { Stream } from "../api/stream.js";
export { BundleError, DeviceError, NearfarError, RequestError, WorkerError } from "../errors.js";
export type { ConnectOptions, WorkerLike } from "./connect_engine.js";
export { connectEngine } from "./connect_engine.js";

// @nearfar/web/client: the small part of the package that a page needs if its engine runs in a worker.

export type { EngineApi, EngineWithSessions, SessionApi } from "../api/engine_api.js";
export type { SessionOptions } from "../session.js";
export { Stream } from "../api/stream.js";
export { BundleError, DeviceError, NearfarError, RequestError, WorkerError } from "../errors.js";
export type { ConnectOptions, WorkerEngine, WorkerLike, WorkerTokenRequest } from "./connect_engine.js";
export { connectEngine } from "./connect_engine.js";

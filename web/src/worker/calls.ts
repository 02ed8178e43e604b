// @nearfar/web/calls: the calls of a worker's engine over any port, for those who carry the messages some other way, as into an app's web view.

export type { EngineApi } from "../api/engine_api.js";
export type { EngineInfo } from "../engine.js";
export type { LoadProgress } from "../load.js";
export type { ErrorJson } from "../errors.js";
export {
  BundleError,
  DeviceError,
  NearfarError,
  RequestError,
  StorageError,
  WorkerError,
  errorFromJson,
  isNearfarError,
} from "../errors.js";
export { remoteEngine } from "./connect_engine.js";
export { Remote } from "./remote.js";
export { serve } from "./serve.js";
export type { FromWorker, ToWorker, WireError, WirePort } from "./wire.js";

// @nearfar/web/calls: calls an engine over any port. For applications that transport the messages in another way, for
// example into an app's web view.

export type { EngineApi } from "../api/engine_api.js";
export type { EngineInfo } from "../engine.js";
export type { LoadProgress } from "../load_options.js";
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

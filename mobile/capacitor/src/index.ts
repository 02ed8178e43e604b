// @nearfar/capacitor: bundles in a Capacitor app's storage, downloaded in the background.

export {
  BundleError,
  DeviceError,
  NearfarError,
  RequestError,
  StorageError,
  WorkerError,
} from "../../../web/src/errors.js";
export type { LoadProgress } from "../../../web/src/load_options.js";
export type { DownloadJob, DownloadState, NativeDownloads } from "../../native/src/native_downloads.js";
export type { BundleHost, DownloadOptions } from "./load.js";
export { BundleLoader } from "./load.js";

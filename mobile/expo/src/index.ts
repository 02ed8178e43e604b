// @nearfar/expo: downloads of bundles in the background, for @nearfar/react-native.

export { BundleError, StorageError, WorkerError } from "../../../web/src/errors.js";
export type { DownloadJob, DownloadState, NativeDownloads } from "../../native/src/native_downloads.js";
export type { BackgroundOptions } from "./background_download.js";
export { backgroundDownload } from "./background_download.js";

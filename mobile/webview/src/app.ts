// @nearfar/webview/app: for an app's own JavaScript outside of the web view, as in React Native. Apps in Swift and
// Kotlin send the same frames.

export type { EngineApi, EngineInfo, LoadProgress } from "@nearfar/web/calls";
export { BundleError, DeviceError, NearfarError, RequestError, StorageError, WorkerError } from "@nearfar/web/calls";
export { connectWebView } from "./connect_web_view.js";
export type { ConnectOptions, WebView } from "./connect_web_view.js";
export type { HostState, LoadOptions, MemoryInfo } from "./engine_host.js";
export { PROTOCOL } from "./frame.js";
export type { Transport } from "./transport.js";

// @nearfar/webview: for the page in an app's web view.

export { EngineHost } from "./engine_host.js";
export type { HostOptions, HostState, LoadOptions, MemoryInfo } from "./engine_host.js";
export { PROTOCOL } from "./frame.js";
export { serveApp } from "./serve_app.js";
export { supportProblem } from "./support.js";
export type { Transport } from "./transport.js";
export { findTransport } from "./transport.js";

// @nearfar/web/worker: for the script of a worker or a service worker.

export { NearfarError } from "../errors.js";
export type { ServeOptions, WorkerScope } from "./serve_engine.js";
export { serveEngine } from "./serve_engine.js";
export type { LoadEngine } from "./shared_engines.js";

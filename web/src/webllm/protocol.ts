// What a page and a handler say to each other. A page greets a handler with a port of its own; calls then go over that
// port.

import type { AppConfig, ChatOptions } from "./config.js";
import type { InitProgressCallback, MLCEngineInterface } from "./interface.js";

/**
 * The models that a page expects in the handler's engine. Another page, or a browser that restarts the worker, may have
 * changed them.
 */
export interface Expected {
  readonly modelId: readonly string[];
  readonly chatOpts: readonly ChatOptions[];
  readonly appConfig: AppConfig | null;
}

export type Method = Exclude<
  keyof MLCEngineInterface,
  | "chat"
  | "completions"
  | "embeddings"
  | "setInitProgressCallback"
  | "getInitProgressCallback"
  | "setAppConfig"
  | "setLogLevel"
  | "reload"
>;

/** What a handler serves to each page. */
export interface HandlerTarget {
  /** Resolves when the page can wait for the lock of the handler's end. */
  hello(): Promise<void>;
  /** Ends the connection. */
  disconnect(): void;
  /** Loads the models, unless they are loaded. */
  reload(expected: Expected, onProgress?: InitProgressCallback): Promise<void>;
  /** Calls a method of the engine, once it has the expected models. */
  request(expected: Expected | null, method: Method, ...args: readonly unknown[]): Promise<unknown>;
}

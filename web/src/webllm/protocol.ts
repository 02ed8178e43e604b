// The protocol between a page and a handler. A page greets a handler with a new port, and its calls use this port.

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

/** The methods that a handler serves to each page. */
export interface HandlerTarget {
  /** Resolves when the handler holds its lock, so that the page can wait for it. */
  hello(): Promise<void>;
  /** Ends the connection. */
  disconnect(): void;
  /** Loads the models, unless they are loaded. */
  reload(expected: Expected, onProgress?: InitProgressCallback): Promise<void>;
  /** Calls a method of the engine after it has loaded the expected models. */
  request(expected: Expected | null, method: Method, ...args: readonly unknown[]): Promise<unknown>;
}

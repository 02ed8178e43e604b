// The app's side of the bridge: sends an app's calls as frames, and receives results, streams and errors.

import type { EngineApi, EngineInfo, ErrorJson, ToWorker } from "@nearfar/web/calls";
import { Remote, WorkerError, errorFromJson, remoteEngine } from "@nearfar/web/calls";

import type { LoadOptions, MemoryInfo } from "./engine_host.js";
import type { PageFrame } from "./frame.js";
import { PROTOCOL, newName, readFrame, writeFrame } from "./frame.js";
import { FramePort } from "./frame_port.js";
import type { Transport } from "./transport.js";
import { fromJson } from "./values.js";

export interface ConnectOptions {
  /** How long the page may take to answer. */
  readonly timeoutMs?: number;
}

/**
 * A connection to one load of the page. When it ends, running calls fail with the error of ``closed``; then connect
 * again.
 */
export interface WebView {
  /** Why no model can run in this web view; `load` throws the same error. */
  readonly problem: Error | null;
  /** Resolves when the page was reloaded, refused a frame, or this end was closed. */
  readonly closed: Promise<Error>;
  /** Throws BundleError, DeviceError, StorageError, WorkerError, or the signal's reason. */
  load(bundle: string, options?: LoadOptions): Promise<EngineApi>;
  pause(): Promise<void>;
  resume(): Promise<void>;
  /** Frees the model at once; the next request loads it again. */
  lowMemory(): Promise<{ readonly freedBytes: number }>;
  memory(): Promise<MemoryInfo>;
  /** Frees the model and forgets the bundle. */
  destroy(): Promise<void>;
  /** Fails running calls, and stops listening. */
  close(message?: string): void;
}

const TIMEOUT_MS = 30_000;

/** Waits for the page's hello. Throws WorkerError if it does not arrive, or if the page uses another protocol. */
export async function connectWebView(
  transport: Transport,
  { timeoutMs = TIMEOUT_MS }: ConnectOptions = {},
): Promise<WebView> {
  const app = newName();
  let session = "";
  let end: (error: Error) => void = () => undefined;
  const closed = new Promise<Error>((resolve) => (end = resolve));
  let greeted: (problem: ErrorJson | null) => void = () => undefined;
  const greeting = new Promise<ErrorJson | null>((resolve) => (greeted = resolve));

  const hello = (): void => {
    transport.send(writeFrame({ type: "hello", app }));
  };
  const port = new FramePort((message) => {
    transport.send(writeFrame({ type: "message", app, session, message: message as ToWorker }));
  });
  const remote = new Remote(port);
  const close = (error: Error): void => {
    unlisten();
    clearTimeout(timer);
    remote.close(error);
    end(error);
  };

  const receive = (frame: PageFrame): void => {
    if (frame.nearfar !== PROTOCOL) {
      close(
        new WorkerError(
          `The page uses protocol ${frame.nearfar} of the bridge, the app ${PROTOCOL}; ` +
            "ship both from the same version of @nearfar/webview",
        ),
      );
    } else if (session !== "" && frame.session !== session) {
      close(
        new WorkerError(
          "The web view's page was reloaded, so running calls are lost; connect again and load the model again",
        ),
      );
    } else if (frame.app !== app) {
      // The frame is for an earlier app, or from a page that was loaded after our hello.
      if (frame.app === null && session === "") hello();
    } else if (frame.type === "hello") {
      ({ session } = frame);
      greeted(frame.problem);
    } else if (frame.type === "refused") {
      close(errorFromJson(frame.error));
    } else {
      port.receive(fromJson(frame.message));
    }
  };
  const unlisten = transport.listen((text) => {
    const frame = readFrame(text);
    if (frame !== null) receive(frame as PageFrame);
  });
  const timer = setTimeout(() => {
    close(
      new WorkerError(
        `The web view's page has not answered for ${timeoutMs / 1000} seconds; ` +
          "check its console, and that it calls serveApp",
      ),
    );
  }, timeoutMs);

  hello();
  const failed = closed.then((error) => {
    throw error;
  });
  const problem = await Promise.race([greeting, failed]);
  clearTimeout(timer);
  return webView(remote, problem, closed, close);
}

function webView(
  remote: Remote,
  problem: ErrorJson | null,
  closed: Promise<Error>,
  close: (error: Error) => void,
): WebView {
  const call = async <Result>(name: string, ...args: readonly unknown[]): Promise<Result> =>
    (await remote.call([name], args)) as Result;
  return {
    problem: problem === null ? null : errorFromJson(problem),
    closed,
    load: async (bundle, options = {}) =>
      remoteEngine(
        remote,
        await call<EngineInfo>("load", bundle, options),
        () => void call("destroy").catch(() => undefined),
      ),
    pause: () => call("pause"),
    resume: () => call("resume"),
    lowMemory: () => call("lowMemory"),
    memory: () => call("memory"),
    destroy: () => call("destroy"),
    close: (message = "The connection to the web view was closed") => {
      close(new WorkerError(message));
    },
  };
}

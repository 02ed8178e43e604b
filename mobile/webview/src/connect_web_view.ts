// The app's side of the bridge: the calls of an app flow out as frames, and results, streams and errors come back.

import type { EngineApi, EngineInfo, ErrorJson, ToWorker } from "@nearfar/web/calls";
import { Remote, WorkerError, errorFromJson, remoteEngine } from "@nearfar/web/calls";

import type { LoadOptions, MemoryInfo } from "./engine_host.js";
import type { PageFrame } from "./frame.js";
import { PROTOCOL, newName, readFrame, writeFrame } from "./frame.js";
import { FramePort } from "./frame_port.js";
import type { Transport } from "./transport.js";
import { fromJson } from "./values.js";

export interface ConnectOptions {
  /** How long a page may take until it answers. */
  readonly timeoutMs?: number;
}

/** One life of the page. When it ends, calls that run fail with the error that ``closed`` gives; connect again then. */
export interface WebView {
  /** Why no model will run in this web view; `load` throws the same. */
  readonly problem: Error | null;
  /** Resolves when the page was loaded anew, refused a frame, or this end was closed. */
  readonly closed: Promise<Error>;
  /** Throws BundleError, DeviceError, StorageError, WorkerError, or the signal's reason. */
  load(bundle: string, options?: LoadOptions): Promise<EngineApi>;
  pause(): Promise<void>;
  resume(): Promise<void>;
  /** Frees the model at once; the next request loads it again. */
  lowMemory(): Promise<{ readonly freedBytes: number }>;
  memory(): Promise<MemoryInfo>;
  /** Frees the model and forgets it. */
  destroy(): Promise<void>;
  /** Fails what runs, and listens no more. */
  close(message?: string): void;
}

const TIMEOUT_MS = 30_000;

/** Waits until the page greets. Throws WorkerError where it does not, or speaks another protocol. */
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
          `The page speaks protocol ${frame.nearfar} of the bridge, the app ${PROTOCOL}; ship both from the same version of @nearfar/webview`,
        ),
      );
    } else if (session !== "" && frame.session !== session) {
      close(
        new WorkerError(
          "The web view's page was loaded anew, and what ran in it is lost; connect again and load the model again",
        ),
      );
    } else if (frame.app !== app) {
      // An answer to an app of before, or a page that is there only now and has not heard us.
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
        `The web view's page has not answered for ${timeoutMs / 1000} seconds; see its console, and whether it calls serveApp`,
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

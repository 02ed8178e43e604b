// The page's side of the bridge: receives the app's frames, calls the host, and sends the results.

import type { ErrorJson, FromWorker } from "@nearfar/web/calls";
import { RequestError, WorkerError, isNearfarError, serve } from "@nearfar/web/calls";

import type { EngineHost } from "./engine_host.js";
import { PROTOCOL, checkAppFrame, newName, readFrame, writeFrame } from "./frame.js";
import { FramePort } from "./frame_port.js";
import type { SupportScope } from "./support.js";
import { supportProblem } from "./support.js";
import type { Transport } from "./transport.js";
import { findTransport } from "./transport.js";

/** The app that said hello last. */
interface Client {
  readonly app: string;
  readonly port: FramePort;
  /** Ends all its calls. */
  stop(): void;
}

/** The functions that an app can call, by the paths of its calls. */
function callable(host: EngineHost): object {
  return {
    engine: host.engine,
    load: host.load.bind(host),
    pause: host.pause.bind(host),
    resume: host.resume.bind(host),
    lowMemory: host.lowMemory.bind(host),
    memory: host.memory.bind(host),
    destroy: host.destroy.bind(host),
  };
}

/**
 * Serve the host to the app around the page. Returns false if there is no app. ``scope`` is the scope that
 * `supportProblem` checks. Call this once per page.
 */
export function serveApp(
  host: EngineHost,
  transport: Transport | null = findTransport(),
  scope?: SupportScope,
): boolean {
  if (transport === null) return false;
  const session = newName();
  const target = callable(host);
  const problem = supportProblem(scope).then((error): ErrorJson | null => error?.toJSON() ?? null);
  let client: Client | null = null;

  const refuse = (app: unknown, error: ErrorJson): void => {
    transport.send(writeFrame({ type: "refused", session, app: typeof app === "string" ? app : null, error }));
  };
  const greet = async (app: string | null): Promise<void> => {
    transport.send(writeFrame({ type: "hello", session, app, problem: await problem }));
  };
  const admit = (app: string): Client => {
    client?.stop();
    const port = new FramePort((message) => {
      transport.send(writeFrame({ type: "message", session, app, message: message as FromWorker }));
    });
    return { app, port, stop: serve(port, target) };
  };

  transport.listen((text) => {
    const frame = readFrame(text);
    if (frame === null) return;
    const { app } = frame as { readonly app?: unknown };
    if (frame.nearfar !== PROTOCOL) {
      const message =
        `The app uses protocol ${frame.nearfar} of the bridge, the page ${PROTOCOL}; ` +
        "ship both from the same version of @nearfar/webview";
      refuse(app, new WorkerError(message, { app: frame.nearfar, page: PROTOCOL }).toJSON());
      return;
    }
    try {
      const checked = checkAppFrame(frame);
      if (checked.type === "hello") {
        if (client?.app !== checked.app) client = admit(checked.app);
        void greet(checked.app);
      } else if (checked.session !== session || client?.app !== checked.app) {
        throw new WorkerError("The page or the app was restarted; send hello, and load the model again", {
          session,
        });
      } else {
        client.port.receive(checked.message);
      }
    } catch (error) {
      const known = isNearfarError(error) ? error : new RequestError(`A frame could not be read: ${String(error)}`);
      refuse(app, known.toJSON());
    }
  });
  void greet(null);
  return true;
}

// The app's page: it has the engine in a worker, serves it to native code, and is a chat itself.

import { EngineHost, serveApp } from "@nearfar/webview";

import { Chat } from "./chat.js";
import { showFailure, showProgress } from "./load_view.js";

const host = new EngineHost({
  startWorker: () => new Worker("./engine_worker.js", { type: "module" }),
  loadHere: async (bundle, options) => (await import("@nearfar/web")).Engine.load(bundle, options),
});
serveApp(host);

// A phone takes the GPU from an app that is not in sight.
document.addEventListener("visibilitychange", () => {
  void (document.hidden ? host.pause() : host.resume());
});

try {
  // The bundle lies in the app already: the browser's store would only be a second copy.
  await host.load("./bundle/", { store: false, onProgress: showProgress });
  new Chat(host);
} catch (error) {
  showFailure(error);
}

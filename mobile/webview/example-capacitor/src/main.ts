// The app's page: it runs the engine in a worker, serves it to native code, and shows a chat.

import { EngineHost, serveApp } from "@nearfar/webview";

import { Chat } from "./chat.js";
import { showFailure, showProgress } from "./load_view.js";

const host = new EngineHost({
  startWorker: () => new Worker("./engine_worker.js", { type: "module" }),
  loadHere: async (bundle, options) => (await import("@nearfar/web")).Engine.load(bundle, options),
});
serveApp(host);

// A phone takes the GPU away from an app in the background.
document.addEventListener("visibilitychange", () => {
  void (document.hidden ? host.pause() : host.resume());
});

try {
  // The bundle is part of the app, so the browser's store would only be a second copy.
  await host.load("./bundle/", { store: false, onProgress: showProgress });
  new Chat(host);
} catch (error) {
  showFailure(error);
}

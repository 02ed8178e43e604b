import { ExtensionServiceWorkerMLCEngineHandler } from "@nearfar/web/webllm";

// The parts of @types/chrome that this script uses.
interface Port {
  name: string;
  postMessage: (message: unknown) => void;
  onMessage: { addListener(callback: (message: any, port: Port) => void): void };
  onDisconnect: { addListener(callback: (port: Port) => void): void };
}
declare const chrome: { runtime: { onConnect: { addListener(callback: (port: Port) => void): void } } };

// Hook an engine up to a service worker handler.
let handler: ExtensionServiceWorkerMLCEngineHandler | undefined;

chrome.runtime.onConnect.addListener(function (port) {
  console.assert(port.name === "web_llm_service_worker");
  if (handler === undefined) {
    handler = new ExtensionServiceWorkerMLCEngineHandler(port);
  } else {
    handler.setPort(port);
  }
  port.onMessage.addListener(handler.onmessage.bind(handler));
});

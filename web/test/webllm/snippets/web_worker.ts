import { WebWorkerMLCEngineHandler } from "@nearfar/web/webllm";

const handler = new WebWorkerMLCEngineHandler();
self.onmessage = (msg: MessageEvent) => {
  handler.onmessage(msg);
};

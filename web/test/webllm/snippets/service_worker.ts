import { ServiceWorkerMLCEngineHandler } from "@nearfar/web/webllm";

new ServiceWorkerMLCEngineHandler();
console.log("Service Worker is ready!");

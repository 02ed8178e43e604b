import * as webllm from "@nearfar/web/webllm";
import { appConfig as listed, selectedModel } from "./app_config.js";

export async function main() {
  const appConfig: webllm.AppConfig = { ...listed, cacheBackend: "indexeddb" };
  const engine = await webllm.CreateMLCEngine(selectedModel, { appConfig });
  const cached = await webllm.hasModelInCache(selectedModel, appConfig);
  await engine.reload(selectedModel);
  await webllm.deleteChatConfigInCache(selectedModel, appConfig);
  await webllm.deleteModelWasmInCache(selectedModel, appConfig);
  const stillCached = await webllm.hasModelInCache(selectedModel, appConfig);
  await webllm.deleteModelAllInfoInCache(selectedModel, appConfig);
  const afterDeletion = await webllm.hasModelInCache(selectedModel, appConfig);
  await webllm.deleteModelInCache(selectedModel, appConfig);
  await engine.unload();
  return { cached, stillCached, afterDeletion };
}

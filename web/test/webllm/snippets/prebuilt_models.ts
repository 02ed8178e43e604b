import { CreateMLCEngine, functionCallingModelIds, prebuiltAppConfig } from "@nearfar/web/webllm";
import type { AppConfig, ModelRecord } from "@nearfar/web/webllm";
import { appConfig as listed, selectedModel } from "./app_config.js";

export async function main() {
  const missing = await CreateMLCEngine("Llama-3.1-8B-Instruct-q4f32_1-MLC").catch((error: Error) => error.message);
  const record: ModelRecord = { ...listed.model_list[0] };
  prebuiltAppConfig.model_list.push(record);
  const appConfig: AppConfig = { ...prebuiltAppConfig, cacheBackend: "opfs" };
  const loads = [await CreateMLCEngine(selectedModel), await CreateMLCEngine(selectedModel, { appConfig })];
  const vendors = await Promise.all(loads.map((engine) => engine.getGPUVendor()));
  for (const engine of loads) {
    await engine.unload();
  }
  prebuiltAppConfig.model_list.pop();
  return { missing, vendors: vendors.length, calling: functionCallingModelIds.includes(selectedModel) };
}

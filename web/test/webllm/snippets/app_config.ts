// The list that an application defines once. The tests serve a bundle at this address.

import { modelLibURLPrefix, modelVersion } from "@nearfar/web/webllm";
import type { AppConfig } from "@nearfar/web/webllm";

export const selectedModel = "demo-q4f32_1-MLC";
export const otherModel = "other-q4f32_1-MLC";

export const appConfig: AppConfig = {
  model_list: [
    {
      model: "https://models.example/demo/",
      model_id: selectedModel,
      model_lib: modelLibURLPrefix + modelVersion + "/demo-q4f32_1-ctx4k_cs1k-webgpu.wasm",
      vram_required_MB: 50.5,
      low_resource_required: true,
      required_features: [],
    },
    {
      model: "https://models.example/demo/",
      model_id: otherModel,
      model_lib: "",
      overrides: { context_window_size: 64, temperature: 0 },
    },
  ],
  cacheBackend: "cache",
};

// Replaces Engine.load: loads fake engines by the addresses of their bundles.

import type { Model } from "../../src/api/model.js";
import type { Encoder } from "../../src/encoders/index.js";
import type { LoadEngine } from "../../src/webllm/engine.js";
import { FakeSource, fakeEngine, modelOf } from "../api/fake_model.js";

export interface FakeLoad {
  readonly load: LoadEngine;
  readonly loaded: string[];
  readonly destroyed: string[];
  readonly source: (bundle: string) => FakeSource;
}

/** ``answers`` are those of FakeSource. The first argument may be additional properties of the model. */
export function fakeLoad(
  ...answers: readonly (string | (Partial<Model> & { readonly encoder?: Encoder }))[]
): FakeLoad {
  const loaded: string[] = [];
  const destroyed: string[] = [];
  const sources = new Map<string, FakeSource>();
  const texts = answers.filter((answer) => typeof answer === "string");
  const rest = answers.find((answer) => typeof answer !== "string");
  const load: LoadEngine = (bundle, { onProgress }) => {
    loaded.push(bundle);
    onProgress?.({
      phase: "download",
      loadedBytes: 1_000_000,
      storedBytes: 0,
      totalBytes: 4_000_000,
      compiledKernels: 1,
      totalKernels: 2,
    });
    onProgress?.({
      phase: "ready",
      loadedBytes: 4_000_000,
      storedBytes: 0,
      totalBytes: 4_000_000,
      compiledKernels: 2,
      totalKernels: 2,
    });
    const source = new FakeSource(texts);
    sources.set(bundle, source);
    return Promise.resolve({
      ...fakeEngine(modelOf(source, rest), 1000, rest?.encoder),
      generateTokens: (request) => source.generateTokens(request),
      info: { model: "fake", adapter: "a GPU" } as never,
      destroy: () => destroyed.push(bundle),
    });
  };
  const source = (bundle: string): FakeSource => {
    const loadedSource = sources.get(bundle);
    if (loadedSource === undefined) throw new Error(`${bundle} was not loaded`);
    return loadedSource;
  };
  return { load, loaded, destroyed, source };
}

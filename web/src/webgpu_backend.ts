// The backend for WebGPU bundles: a runner that has passed its self-test on this device.

import type { Backend, Opening } from "./backend.js";
import { Tuner } from "./engine/tuner.js";
import type { Bundle } from "./runtime/bundle.js";
import type { MemoryOptions } from "./runtime/memory_plan.js";
import type { TrustOptions } from "./runtime/trust.js";
import { openTrusted } from "./runtime/trust.js";

/** Throws BundleError, DeviceError, or the signal's reason. */
export async function openWebGpu(
  bundle: Bundle,
  options: TrustOptions & MemoryOptions,
  opening: Opening,
): Promise<Backend> {
  const { maxSequences, maxBatchTokens, pages, maxAdapters, memoryBudget } = options;
  const { onTest, ...rest } = opening;
  const sizes = { maxSequences, maxBatchTokens, pages, maxAdapters, memoryBudget };
  const trusted = await openTrusted(bundle, options, { ...sizes, ...rest }, onTest);
  const { runner, device, selfTest } = trusted;
  return {
    runner,
    info: { target: "webgpu", adapter: device.adapter, activation: device.activation, selfTest, ...runner.info },
    startTuning: (engine) => new Tuner(trusted, engine),
    destroy: () => {
      runner.destroy();
    },
  };
}

// Whether a device can run a bundle, by what a catalog says about it: before anything of the bundle is downloaded.

import { formatBytes } from "../format_bytes.js";
import { tooLarge } from "../shared/offers.js";
import type { CatalogBundle } from "./catalog.js";

/**
 * What a device has. ``features`` and limits are those of its WebGPU adapter; ``memoryBytes``: what a model may take, null
 * if it is not known. ``isProbed``: a probe will measure for each bundle whether it fits.
 */
export interface DeviceFacts {
  readonly features: ReadonlySet<string>;
  readonly maxBufferBytes: number;
  readonly memoryBytes: number | null;
  readonly isProbed?: boolean | undefined;
}

/**
 * Why a bundle does not fit a device, or null if it does. ``device`` is null without WebGPU.
 */
export function misfit(bundle: CatalogBundle, device: DeviceFacts | null): string | null {
  if (bundle.target === "onnx") return tooLarge(bundle, device?.memoryBytes ?? null);
  if (bundle.target !== "webgpu") return `it is for ${bundle.target}`;
  if (device === null) return "this browser has no WebGPU adapter";
  const lacking = bundle.activations.map(({ needs }) => needs.filter((need) => !device.features.has(need)));
  if (!lacking.some((needs) => needs.length === 0))
    return `this device lacks ${[...new Set(lacking.flat())].join(", ") || "its activations"}`;
  if (bundle.largest_buffer_bytes > device.maxBufferBytes)
    return `its largest buffer has ${formatBytes(bundle.largest_buffer_bytes)}, this device's limit is ${formatBytes(device.maxBufferBytes)}`;
  return tooLarge(bundle, device.memoryBytes);
}

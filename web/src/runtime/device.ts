// Opens a GPUDevice with exactly the features and limits that a bundle needs, or throws a DeviceError that states what
// is missing.

import type { ErrorDetails } from "../errors.js";
import { DeviceError, messageOf, NearfarError } from "../errors.js";
import type { AdapterEntry, Manifest } from "./manifest.js";
import type { ActivationDtype } from "./variants.js";

/** ``gpu`` replaces navigator.gpu, and ``adapter`` the adapter that it would choose. */
export interface DeviceOptions {
  readonly gpu?: GPU | undefined;
  readonly adapter?: GPUAdapter | undefined;
}

/**
 * The caller destroys ``device``. ``features`` are those that variants may need: features of the device and of the
 * browser's WGSL, and the vendor.
 */
export interface OpenDevice {
  readonly device: GPUDevice;
  readonly activation: ActivationDtype;
  readonly features: ReadonlySet<string>;
  /** The adapter as a text, and by its parts. */
  readonly adapter: string;
  readonly adapterEntry: AdapterEntry;
}

// This feature is optional; if the adapter has it, variants are timed by the device's own clock.
const TIMESTAMPS = "timestamp-query";

type LimitName =
  | "maxBufferSize"
  | "maxStorageBufferBindingSize"
  | "maxStorageBuffersPerShaderStage"
  | "maxComputeInvocationsPerWorkgroup"
  | "maxComputeWorkgroupSizeX";

/** The limits of every device (W3C, WebGPU, 3.6.2). */
const DEFAULT_LIMITS: Readonly<Record<LimitName, number>> = {
  maxBufferSize: 256 * 2 ** 20,
  maxStorageBufferBindingSize: 128 * 2 ** 20,
  maxStorageBuffersPerShaderStage: 8,
  maxComputeInvocationsPerWorkgroup: 256,
  maxComputeWorkgroupSizeX: 256,
};

/**
 * ``largestBuffer`` returns the size in bytes of the largest buffer for an activation dtype. The dtypes in ``without``
 * are not used.
 */
export async function openDevice(
  manifest: Manifest,
  options: DeviceOptions,
  largestBuffer: (activation: ActivationDtype) => number,
  without: ReadonlySet<ActivationDtype> = new Set(),
): Promise<OpenDevice> {
  const adapter = options.adapter ?? (await findAdapter(options.gpu));
  const known = knownFeatures(adapter, options.gpu);
  const activation = chooseActivation(manifest, known, without);
  const needs = manifest.activations.find((entry) => entry.dtype === activation)?.needs ?? [];
  const features = new Set([
    ...needs,
    // Compilers of different vendors suit different variants.
    ...variantNeeds(manifest, new Set([...known, `vendor-${adapter.info.vendor}`])),
    ...(adapter.features.has(TIMESTAMPS) ? [TIMESTAMPS] : []),
  ]);
  const requiredLimits = limitsBeyondDefault(manifest, largestBuffer(activation), adapter.limits);
  try {
    const requiredFeatures = [...features].filter((feature) => adapter.features.has(feature)) as GPUFeatureName[];
    const device = await adapter.requestDevice({ label: "nearfar", requiredFeatures, requiredLimits });
    return {
      device,
      activation,
      features,
      adapter: describeAdapter(adapter.info),
      adapterEntry: adapterEntry(adapter.info),
    };
  } catch (error) {
    throw new DeviceError(
      `The WebGPU adapter provides no device (${messageOf(error)}); reload the page, or restart the browser`,
      {},
      { cause: error },
    );
  }
}

/** The first activation dtype whose needs are met. Throws DeviceError naming the missing features. */
export function chooseActivation(
  manifest: Manifest,
  features: ReadonlySet<string>,
  without: ReadonlySet<ActivationDtype> = new Set(),
): ActivationDtype {
  const entry = manifest.activations.find(
    ({ dtype, needs }) => !without.has(dtype) && needs.every((need) => features.has(need)),
  );
  if (entry !== undefined) return entry.dtype;
  const missing = [
    ...new Set(manifest.activations.flatMap(({ needs }) => needs.filter((need) => !features.has(need)))),
  ];
  const dtypes = manifest.activations.map(({ dtype }) => dtype).join(", ");
  throw new DeviceError(
    `This device lacks the WebGPU feature ${missing.join(", ")}, and the bundle offers ${dtypes} activations only; ` +
      "compile it with float32 activations as well, or use a device that has the feature",
    { missing, activations: dtypes },
  );
}

/** The parts of a description that identify an adapter. */
export function adapterEntry({ vendor, architecture, device, description }: GPUAdapterInfo): AdapterEntry {
  return { vendor, architecture, device, description };
}

/** The features of an adapter, and those of the browser's WGSL beyond its first version. */
export function knownFeatures({ features }: GPUAdapter, gpu: GPU | undefined): ReadonlySet<string> {
  return new Set([...features, ...(findGpu(gpu)?.wgslLanguageFeatures ?? [])]);
}

/** Some pages and browsers switch WebGPU off by setting navigator.gpu to null. */
function findGpu(gpu: GPU | undefined): GPU | null | undefined {
  return gpu ?? (typeof navigator === "undefined" ? undefined : navigator.gpu);
}

/**
 * Throws DeviceError on a page that was not loaded over https or from localhost: browsers give it neither WebGPU nor
 * SHA-256.
 */
export function requireSecureContext(): void {
  if ("isSecureContext" in globalThis && !globalThis.isSecureContext) {
    throw new DeviceError(
      "This page has no WebGPU, because it was not loaded over https or from localhost; serve it from there",
      { missing: "navigator.gpu" },
    );
  }
}

/** Throws DeviceError with the reason if there is no adapter. */
export async function findAdapter(custom: GPU | undefined): Promise<GPUAdapter> {
  const gpu = findGpu(custom);
  if (gpu === undefined || gpu === null) {
    requireSecureContext();
    throw new DeviceError(
      "This browser has no WebGPU; use a current Chrome, Edge, Safari or Firefox with WebGPU switched on",
      { missing: "navigator.gpu" },
    );
  }
  const adapter = await gpu.requestAdapter({ powerPreference: "high-performance" });
  if (adapter === null) {
    throw new DeviceError(
      "This browser has no WebGPU adapter; " +
        "switch on hardware acceleration, update the graphics driver, or use another device",
      {
        missing: "adapter",
      },
    );
  }
  return adapter;
}

function variantNeeds(manifest: Manifest, features: ReadonlySet<string>): readonly string[] {
  const needs = Object.values(manifest.variants).flatMap((rows) => rows.flatMap((row) => row.needs));
  return needs.filter((need) => features.has(need));
}

/** Throws DeviceError for a limit below what the bundle needs. */
export function limitsBeyondDefault(
  manifest: Manifest,
  largestBuffer: number,
  offered: GPUSupportedLimits,
): Record<string, number> {
  const kernels = Object.values(manifest.kernels);
  const threads = Math.max(0, ...kernels.map((kernel) => kernel.workgroup_size));
  const needed: Readonly<Record<LimitName, number>> = {
    maxBufferSize: largestBuffer,
    maxStorageBufferBindingSize: largestBuffer,
    maxStorageBuffersPerShaderStage: Math.max(0, ...kernels.map((kernel) => kernel.bindings.length)),
    maxComputeInvocationsPerWorkgroup: threads,
    maxComputeWorkgroupSizeX: threads,
  };
  const beyond = (Object.keys(needed) as LimitName[]).filter((name) => needed[name] > DEFAULT_LIMITS[name]);
  for (const name of beyond) {
    if (offered[name] < needed[name]) {
      throw new DeviceError(
        `This device's WebGPU limit ${name} is ${offered[name]}, the bundle needs ${needed[name]}; ` +
          "use a smaller model, context or prefillChunk",
        {
          limit: name,
          found: offered[name],
          needed: needed[name],
        },
      );
    }
  }
  return Object.fromEntries(beyond.map((name) => [name, needed[name]]));
}

function describeAdapter(info: GPUAdapterInfo): string {
  if (info.description !== "") return info.description;
  const parts = [info.vendor, info.architecture, info.device].filter((part) => part !== "");
  return parts.length > 0 ? parts.join(" ") : "unnamed adapter";
}

/** The health of a device: after its first failure, every later use fails with the same error. */
export class Health {
  /** Resolves when the device is lost, also when it is destroyed. */
  readonly lost: Promise<DeviceError>;
  #problem: DeviceError | null = null;

  constructor(device: GPUDevice) {
    this.lost = device.lost.then(({ reason, message }) =>
      this.fail(deviceError(`was lost (${reason}: ${message})`, { reason })),
    );
    device.addEventListener("uncapturederror", ({ error }) => {
      this.fail(deviceError(`reports an error (${error.message})`));
    });
  }

  /** Record an error. Returns the first one. */
  fail(error: DeviceError): DeviceError {
    return (this.#problem ??= error);
  }

  /** Throws the error of a device that has failed. */
  require(): void {
    if (this.#problem !== null) throw this.#problem;
  }

  /** Wait for a result of the device. Throws the error of the device if it failed. */
  async result<T>(reading: Promise<T>): Promise<T> {
    try {
      const value = await reading;
      this.require();
      return value;
    } catch (error) {
      if (error instanceof NearfarError) throw error;
      throw this.#problem ?? deviceError(`failed (${messageOf(error)})`, {}, { cause: error });
    }
  }
}

function deviceError(what: string, details?: ErrorDetails, options?: ErrorOptions): DeviceError {
  return new DeviceError(`The WebGPU device ${what}; load the model again`, details, options);
}

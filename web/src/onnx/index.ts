// The backend of ONNX bundles: a separate file, which an engine imports when it first needs it.

import type { Backend, Opening } from "../backend.js";
import { DeviceError } from "../errors.js";
import type { Bundle } from "../runtime/bundle.js";
import { EXPORT_SEQUENCES, planExport } from "../runtime/export_memory.js";
import type { ExportManifest } from "../runtime/manifest.js";
import type { MemoryOptions, MemoryPlan } from "../runtime/memory_plan.js";
import type { OnnxOptions } from "./options.js";
import { OnnxRunner } from "./runner.js";
import { describeRuntime, loadRuntime, openSession } from "./session.js";

export { planExport } from "../runtime/export_memory.js";
export type { OnnxOptions, OnnxRuntime, OnnxSession, OnnxTensor } from "./options.js";

/** Devices whose graphs use tensors in the host's memory. */
const HOST_DEVICES: readonly (string | null)[] = ["cpu", "coreml", "qnn"];

/** Throws BundleError, DeviceError, RequestError, or the signal's reason. */
export async function openOnnxBackend(
  bundle: Bundle<ExportManifest>,
  options: OnnxOptions,
  memory: MemoryOptions,
  opening: Opening,
): Promise<Backend> {
  const { manifest } = bundle;
  requireDevice(manifest);
  const plan = planExport(manifest, memory);
  const ort = await loadRuntime(options);
  const session = await openSession(ort, bundle, options, opening.signal, opening.onBytes);
  const runner = new OnnxRunner(ort, session, manifest, plan, memory.maxSequences ?? EXPORT_SEQUENCES, "rows");
  return onnxBackend(runner, manifest, plan, describeRuntime(ort));
}

/** A runner with the interface of the engine. */
export function onnxBackend(runner: OnnxRunner, manifest: ExportManifest, plan: MemoryPlan, adapter: string): Backend {
  const { weightBytes, keyValueBytes: stateBytes, totalBytes } = plan;
  const activation = manifest.activation === "float32" ? "float32" : "float16";
  const selfTest = {
    state: "untested",
    switchedOff: [],
    largestDeviation: null,
    durationMs: 0,
    remembered: false,
  } as const;
  return {
    runner,
    info: {
      target: "onnx",
      adapter,
      activation,
      selfTest,
      kernels: null,
      dispatchesPerToken: null,
      weightBytes,
      stateBytes,
      totalBytes,
    },
    startTuning: () => null,
    destroy: () => {
      // Nothing waits for it, and a session that cannot be released is not used any more.
      runner.close(new DeviceError("The engine was destroyed; load the model again")).catch(() => undefined);
    },
  };
}

/** Throws DeviceError for a graph of another device, and for pictures, sound and states, which this runner does not read or hold. */
export function requireDevice({ model, device, spec }: ExportManifest): void {
  if (spec.vision !== null || spec.audio !== null)
    throw new DeviceError(
      `${model}: ${spec.audio === null ? "sees pictures" : "reads sound"}, which this runner of ONNX bundles does not; ` +
        "compile with --target webgpu, or load the folder with Transformers.js",
    );
  if (spec.states !== null)
    throw new DeviceError(
      `${model}: layers of ${spec.model_type} keep states, which this runner of ONNX bundles does not hold; ` +
        "compile with --target webgpu, or load the folder with Transformers.js",
    );
  if (HOST_DEVICES.includes(device)) return;
  throw new DeviceError(
    `${model}: its graph is made for ${String(device)}, which leaves keys and values on the device; ` +
      "compile it with --device cpu, or for WebGPU with --target webgpu",
    {
      device,
    },
  );
}

// Compiles the kernels of a manifest to pipelines, without blocking the page.

import { DeviceError, messageOf } from "../errors.js";
import { SHADER_STAGE } from "./gpu_flags.js";
import type { KernelEntry, Manifest } from "./manifest.js";
import { inParallel, readFile } from "./read_file.js";
import type { Source } from "./source.js";

export interface CompiledKernel {
  readonly name: string;
  readonly entry: KernelEntry;
  readonly layout: GPUBindGroupLayout;
  readonly pipeline: GPUComputePipeline;
}

// Browsers fetch about this number of files from a host at once.
const FETCHES = 6;

/** ``refused``: the kernels that the device refuses, with its reason. */
export interface CompiledKernels {
  readonly kernels: ReadonlyMap<string, CompiledKernel>;
  readonly refused: ReadonlyMap<string, DeviceError>;
}

/** Fetch, check and compile the kernels with these names. ``onKernel`` is called after each of them. */
export async function compileKernels(
  device: GPUDevice,
  manifest: Manifest,
  names: readonly string[],
  source: Source,
  signal: AbortSignal,
  onKernel: () => void,
): Promise<CompiledKernels> {
  const kernels = new Map<string, CompiledKernel>();
  const refused = new Map<string, DeviceError>();
  const compiling: Promise<void>[] = [];
  await inParallel(names, FETCHES, async (name) => {
    const entry = manifest.kernels[name];
    if (entry === undefined) throw new Error(name);
    const code = new TextDecoder().decode(await readFile(source, entry, signal));
    const done = compileKernel(device, name, entry, code)
      .then(
        (kernel) => kernels.set(name, kernel),
        (error: unknown) => {
          if (!(error instanceof DeviceError)) throw error;
          refused.set(name, error);
        },
      )
      .then(onKernel);
    // They are all awaited below; until then a failure must not count as unhandled.
    done.catch(() => undefined);
    compiling.push(done);
  });
  await Promise.all(compiling);
  signal.throwIfAborted();
  return { kernels, refused };
}

/** Throws DeviceError if the device refuses the kernel. */
export async function compileKernel(
  device: GPUDevice,
  name: string,
  entry: KernelEntry,
  code: string,
): Promise<CompiledKernel> {
  // Not "auto", which would leave out a binding that a kernel does not use.
  const layout = device.createBindGroupLayout({
    label: name,
    entries: [
      ...entry.bindings.map(({ access }, binding) => ({
        binding,
        visibility: SHADER_STAGE.COMPUTE,
        buffer: { type: access === "read" ? ("read-only-storage" as const) : ("storage" as const) },
      })),
      { binding: entry.bindings.length, visibility: SHADER_STAGE.COMPUTE, buffer: { type: "uniform" as const } },
    ],
  });
  const module = device.createShaderModule({ label: name, code });
  try {
    const pipeline = await device.createComputePipelineAsync({
      label: name,
      layout: device.createPipelineLayout({ bindGroupLayouts: [layout] }),
      compute: { module, entryPoint: entry.entry },
    });
    return { name, entry, layout, pipeline };
  } catch (error) {
    const reason = (await firstError(module)) ?? messageOf(error);
    throw new DeviceError(
      `${entry.file}: this device refuses the kernel (${reason}); ` +
        "update the browser, and report it with the device's name if that does not help",
      { kernel: name },
      { cause: error },
    );
  }
}

async function firstError(module: GPUShaderModule): Promise<string | undefined> {
  const { messages } = await module.getCompilationInfo();
  const error = messages.find(({ type }) => type === "error");
  return error === undefined ? undefined : `line ${error.lineNum}: ${error.message}`;
}

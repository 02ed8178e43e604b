// The schedule: a plan's steps made ready for a device. Steps, compiled kernels and buffers flow in; for a batch, the dispatches to encode flow out.

import { BundleError } from "../errors.js";
import type { Dims } from "./expr.js";
import { evaluate } from "./expr.js";
import type { Workgroups } from "./grid.js";
import { workgroups } from "./grid.js";
import type { Condition, KernelEntry, Manifest, StepEntry } from "./manifest.js";
import type { CompiledKernel } from "./pipelines.js";
import type { ActivationDtype } from "./variants.js";
import { chooseRow, usableRows } from "./variants.js";

export interface Dispatch {
  readonly kernel: CompiledKernel;
  readonly bindGroup: GPUBindGroup;
  readonly workgroups: Workgroups;
}

interface ReadyRow {
  readonly when: Condition;
  readonly launches: readonly Omit<Dispatch, "workgroups">[];
}

/** Finds what stands behind a name of the plan, of a weight the plane. */
export type FindBinding = (name: string, plane: string | null) => GPUBindingResource | undefined;

export class Schedule {
  readonly #steps: readonly (readonly ReadyRow[])[];

  constructor(
    device: GPUDevice,
    manifest: Manifest,
    activation: ActivationDtype,
    features: ReadonlySet<string>,
    kernels: ReadonlyMap<string, CompiledKernel>,
    find: FindBinding,
    uniform: (kernel: string) => GPUBindingResource,
  ) {
    this.#steps = manifest.plan.steps.map((step) =>
      usableRows(manifest, step.variants, activation, features).map((row) => {
        const launches = row.kernels.map((name) => {
          const kernel = kernels.get(name);
          if (kernel === undefined) throw new Error(`kernel ${name} was not compiled`);
          return { kernel, bindGroup: bindGroup(device, step, kernel, find, uniform) };
        });
        return { when: row.when, launches };
      }),
    );
  }

  /** The dispatches of one forward, in order. Kernels without work are left out. */
  dispatches(dims: Dims): readonly Dispatch[] {
    const grids = new Map<CompiledKernel, Workgroups | null>();
    const launches = this.#steps.flatMap((rows) => chooseRow(rows, dims).launches);
    return launches.flatMap(({ kernel, bindGroup }) => {
      let grid = grids.get(kernel);
      if (grid === undefined) {
        grid = gridOf(kernel.entry, dims);
        grids.set(kernel, grid);
      }
      return grid === null ? [] : [{ kernel, bindGroup, workgroups: grid }];
    });
  }
}

/** The names of all kernels that a device may come to run. */
export function kernelNames(manifest: Manifest, activation: ActivationDtype, features: ReadonlySet<string>): readonly string[] {
  const lists = new Set(manifest.plan.steps.map((step) => step.variants));
  return [...new Set([...lists].flatMap((list) => usableRows(manifest, list, activation, features).flatMap((row) => row.kernels)))];
}

function gridOf(kernel: KernelEntry, dims: Dims): Workgroups | null {
  const [x = 1, y = 1] = kernel.grid.map((size) => evaluate(size, dims));
  return workgroups(x, y);
}

function bindGroup(
  device: GPUDevice,
  step: StepEntry,
  kernel: CompiledKernel,
  find: FindBinding,
  uniform: (kernel: string) => GPUBindingResource,
): GPUBindGroup {
  const entries = kernel.entry.bindings.map(({ role, plane }, binding) => {
    const name = role === "scratch" ? `scratch.${plane ?? ""}` : (step.inputs[role] ?? step.outputs[role]);
    const resource = name === undefined ? undefined : find(name, plane);
    if (resource === undefined) {
      const what = `${name ?? `role '${role}'`}${plane === null ? "" : `, plane '${plane}'`}`;
      throw new BundleError(`manifest.json: kernel '${kernel.name}' binds ${what}, which step '${step.op}' does not have; compile the bundle again`, {
        kernel: kernel.name,
        role,
      });
    }
    return { binding, resource };
  });
  entries.push({ binding: entries.length, resource: uniform(kernel.name) });
  return device.createBindGroup({ label: `${step.op} ${kernel.name}`, layout: kernel.layout, entries });
}

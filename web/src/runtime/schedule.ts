// The schedule: the steps of a plan, prepared for a device. It returns the dispatches to encode for a batch.

import { BundleError } from "../errors.js";
import type { Choices } from "./choices.js";
import { arrange, NO_CHOICES, variantName } from "./choices.js";
import type { Dims } from "./expr.js";
import { evaluate } from "./expr.js";
import type { KernelEntry, PlanEntry, StepEntry, VariantEntry } from "./manifest.js";
import type { CompiledKernel } from "./pipelines.js";
import { chooseRow } from "./variants.js";

export interface Dispatch {
  readonly kernel: CompiledKernel;
  readonly bindGroup: GPUBindGroup;
  readonly workgroups: Workgroups;
}

type Launch = Omit<Dispatch, "workgroups">;

interface ReadyRow extends Pick<VariantEntry, "kernels" | "when"> {
  readonly launches: readonly Launch[];
}

interface ReadyStep {
  readonly list: string;
  readonly rows: readonly ReadyRow[];
}

/** Finds the buffer for a name of the plan; for a weight, the buffer of its plane. */
export type FindBinding = (name: string, plane: string | null) => GPUBindingResource | undefined;

export class Schedule {
  #steps: readonly ReadyStep[] = [];
  #choices: Choices = NO_CHOICES;
  /** The index of the first step that reads the complete logits. */
  readonly sample: number;
  /** For each step, the rows in the order in which a batch tries them. */
  #arranged: readonly (readonly ReadyRow[])[] = [];

  /** Prepares ``rows`` of each list; `choose` then selects the rows that run. */
  constructor(
    private readonly device: GPUDevice,
    readonly plan: PlanEntry,
    private readonly rows: ReadonlyMap<string, readonly VariantEntry[]>,
    private readonly kernels: ReadonlyMap<string, CompiledKernel>,
    private readonly find: FindBinding,
    private readonly uniform: (kernel: string) => GPUBindingResource,
  ) {
    const { steps, outputs } = plan;
    // A part of a split head has the logits as its input too, into which it writes its columns.
    const hasLogits = (names: StepEntry["inputs"]) => Object.values(names).includes(outputs.logits ?? "");
    this.sample = steps.findIndex((step) => hasLogits(step.inputs) && !hasLogits(step.outputs));
    this.bind();
  }

  /** Find all buffers, and again after some were replaced. */
  bind(): void {
    this.#steps = this.plan.steps.map((step) => ({
      list: step.variants,
      rows: (this.rows.get(step.variants) ?? []).map((row) => {
        const launches = row.kernels.map((name) => {
          const kernel = this.kernels.get(name);
          if (kernel === undefined) throw new Error(`kernel ${name} was not compiled`);
          return { kernel, bindGroup: bindGroup(this.device, step, kernel, this.find, this.uniform) };
        });
        return { kernels: row.kernels, when: row.when, launches };
      }),
    }));
    this.choose(this.#choices);
  }

  /** From the next batch on, steps select their rows by these choices. */
  choose(choices: Choices): void {
    this.#choices = choices;
    this.#arranged = this.#steps.map(({ list, rows }) => arrange(rows, list, choices));
  }

  /**
   * The dispatches of one forward, or of its steps from ``start`` until before ``end``, in order. Kernels without work
   * are left out.
   */
  dispatches(dims: Dims, start?: number, end?: number): readonly Dispatch[] {
    return dispatchesOf(
      this.#arranged.slice(start, end).flatMap((rows) => chooseRow(rows, dims).launches),
      dims,
    );
  }

  /** The dispatches of a list's steps by one variant, as one list for each step. */
  variantDispatches(list: string, variant: string, dims: Dims): readonly (readonly Dispatch[])[] {
    const rows = this.#steps
      .filter((step) => step.list === list)
      .flatMap((step) => step.rows.filter((row) => variantName(row) === variant));
    return rows.map(({ launches }) => dispatchesOf(launches, dims));
  }
}

/** The names of all kernels of some rows. */
export function kernelNames(rows: ReadonlyMap<string, readonly VariantEntry[]>): readonly string[] {
  return [...new Set([...rows.values()].flatMap((list) => list.flatMap((row) => row.kernels)))];
}

/** Encode dispatches as a compute pass. */
export function encodePass(encoder: GPUCommandEncoder, dispatches: readonly Dispatch[]): void {
  const pass = encoder.beginComputePass();
  encodeDispatches(pass, dispatches);
  pass.end();
}

export function encodeDispatches(pass: GPUComputePassEncoder, dispatches: readonly Dispatch[]): void {
  let current: CompiledKernel | null = null;
  for (const { kernel, bindGroup, workgroups } of dispatches) {
    if (kernel !== current) pass.setPipeline(kernel.pipeline);
    current = kernel;
    pass.setBindGroup(0, bindGroup);
    pass.dispatchWorkgroups(...workgroups);
  }
}

function dispatchesOf(launches: readonly Launch[], dims: Dims): readonly Dispatch[] {
  const grids = new Map<CompiledKernel, Workgroups | null>();
  return launches.flatMap(({ kernel, bindGroup }) => {
    let grid = grids.get(kernel);
    if (grid === undefined) {
      grid = gridOf(kernel.entry, dims);
      grids.set(kernel, grid);
    }
    return grid === null ? [] : [{ kernel, bindGroup, workgroups: grid }];
  });
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
    // The check of the manifest has ensured that all names exist; a vector has a single plane.
    if (resource === undefined)
      throw new BundleError(
        `manifest.json: kernel '${kernel.name}' binds '${role}' without its plane; compile the bundle again`,
      );
    return { binding, resource };
  });
  entries.push({ binding: entries.length, resource: uniform(kernel.name) });
  return device.createBindGroup({ label: `${step.op} ${kernel.name}`, layout: kernel.layout, entries });
}

/** The default limit of workgroups along one axis (W3C, WebGPU, 3.6.2). */
export const MAX_WORKGROUPS = 65_535;

type Workgroups = readonly [x: number, y: number, z: number];

/**
 * The arguments for x times y workgroups. If x exceeds the limit, z is used too, and kernels count z * gridDim.x + x.
 * Null if there is nothing to do.
 */
export function workgroups(x: number, y: number): Workgroups | null {
  if (x === 0 || y === 0) return null;
  if (x <= MAX_WORKGROUPS) return [x, y, 1];
  return [MAX_WORKGROUPS, y, Math.ceil(x / MAX_WORKGROUPS)];
}

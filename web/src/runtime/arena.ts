// The arena: one buffer for everything that changes with a batch, which are its inputs and the kernels' uniforms. One
// write per forward fills it.

import { BundleError, RequestError } from "../errors.js";
import type { Allocator } from "./allocator.js";
import type { Batch, BatchInputs, PatchBatch } from "./batch.js";
import { emptyBatch, MEDIA_INPUTS, SAMPLED_INPUTS, sampledRows } from "./batch.js";
import type { Dims } from "./expr.js";
import { elements, evaluate } from "./expr.js";
import { BUFFER_USAGE } from "./gpu_flags.js";
import type { Expr, PlanEntry } from "./manifest.js";

// The offset alignment that every device supports, for uniforms and for storage (W3C, WebGPU, 3.6.2).
const ALIGNMENT = 256;

export class Arena {
  readonly #words: Int32Array<ArrayBuffer>;
  readonly #floats: Float32Array<ArrayBuffer>;
  readonly #buffer: GPUBuffer;
  readonly #inputs = new Map<keyof BatchInputs, GPUBufferBinding>();
  readonly #uniforms = new Map<string, GPUBufferBinding>();
  /** The words to send: those of pictures and sound, which are many, only with batches that have some. */
  #end = 0;
  readonly #least: number;

  /** ``capacity`` contains the dims of the largest batch, ``uniforms`` the uniform integers of each kernel. */
  constructor(
    private readonly allocator: Allocator,
    entries: PlanEntry["inputs"],
    uniforms: ReadonlyMap<string, readonly Expr[]>,
    capacity: Dims,
  ) {
    // -1 for other inputs, so those of pictures and sound are last.
    const place = (name: string): number => (MEDIA_INPUTS as readonly string[]).indexOf(name);
    const inputs = Object.entries(entries)
      .map(([name, entry]) => [inputName(name), elements(entry.shape, capacity)] as const)
      .sort(([left], [right]) => place(left) - place(right));
    const ranges = [...inputs.map(([, count]) => count), ...[...uniforms.values()].map((values) => values.length)].map(
      range,
    );
    const size = ranges.reduce((sum, bytes) => sum + bytes, 0);
    this.#words = new Int32Array(size / 4);
    this.#floats = new Float32Array(this.#words.buffer);
    this.#buffer = allocator.allocate(
      "arena",
      size,
      BUFFER_USAGE.STORAGE | BUFFER_USAGE.UNIFORM | BUFFER_USAGE.COPY_DST,
    );
    let offset = 0;
    const allocate = (count: number): GPUBufferBinding => {
      const binding = { buffer: this.#buffer, offset, size: Math.ceil(Math.max(count, 1) / 4) * 16 };
      offset += range(count);
      return binding;
    };
    for (const [kernel, values] of uniforms) this.#uniforms.set(kernel, allocate(values.length));
    this.#least = offset / 4;
    for (const [name, count] of inputs) this.#inputs.set(name, allocate(count));
  }

  input(name: string): GPUBufferBinding | undefined {
    return this.#inputs.get(name as keyof BatchInputs);
  }

  uniform(kernel: string): GPUBufferBinding {
    const binding = this.#uniforms.get(kernel);
    if (binding === undefined) throw new Error(`kernel ${kernel} has no uniforms in the arena`);
    return binding;
  }

  /** ``entries`` are those of a plan. Throws RequestError if an input does not have the size that it declares. */
  putInputs(batch: Batch | PatchBatch, dims: Dims, entries: PlanEntry["inputs"]): void {
    const sampled = SAMPLED_INPUTS.some((name) => Object.hasOwn(entries, name));
    const own = { reach: (batch as Partial<Batch>).positions, ...batch };
    const inputs: { [Name in keyof BatchInputs]?: BatchInputs[Name] | undefined } = sampled
      ? { ...own, ...sampledRows(batch as Batch) }
      : own;
    this.#end = this.#least;
    for (const [name, { shape, dtype }] of Object.entries(entries)) {
      const { offset = 0 } = this.input(name) ?? {};
      const values = inputs[name as keyof BatchInputs] ?? [];
      const [found, expected] = [values.length, elements(shape, dims)];
      if (found !== expected)
        throw new RequestError(`batch: ${name} has ${found} elements, the plan needs ${expected}`, {
          input: name,
          found,
          expected,
        });
      (dtype === "float32" ? this.#floats : this.#words).set(values, offset / 4);
      if (found > 0) this.#end = Math.max(this.#end, offset / 4 + found);
    }
  }

  putUniforms(kernel: string, exprs: readonly Expr[], dims: Dims): void {
    const { offset = 0 } = this.uniform(kernel);
    exprs.forEach((expr, index) => {
      this.#words[offset / 4 + index] = evaluate(expr, dims);
    });
  }

  /** Send the inputs that were put last, and all uniforms, to the device. */
  write(): void {
    this.allocator.device.queue.writeBuffer(this.#buffer, 0, this.#words, 0, this.#end);
  }
}

function inputName(name: string): keyof BatchInputs {
  const known = [...Object.keys(emptyBatch()), ...SAMPLED_INPUTS, ...MEDIA_INPUTS];
  if (!known.includes(name)) {
    throw new BundleError(
      `manifest.json: input ${name} is not known here; known: ${known.join(", ")}; use a newer @nearfar/web`,
      { input: name },
    );
  }
  return name as keyof BatchInputs;
}

function range(words: number): number {
  return Math.ceil(Math.max(words * 4, 1) / ALIGNMENT) * ALIGNMENT;
}

// Runs the layers of a mixture whose experts do not fit on the device. The device holds some experts of each layer in
// slots; the others are in the bundle's files, from which they are read when a token chooses them.
//
// The kernels are the same as if all experts were on the device: the experts that the router has chosen are replaced by
// their slots, with -1 for experts that are elsewhere, whose pairs the kernels leave alone. So a batch that chooses more
// experts than there are slots runs a layer's projections in turns, each with other experts.

import { DeviceError, messageOf } from "../errors.js";
import type { Allocator } from "../runtime/allocator.js";
import type { Dims } from "../runtime/expr.js";
import type { ExpertLayer, Mixture } from "../runtime/expert_layers.js";
import type { Manifest, PlaneEntry } from "../runtime/manifest.js";
import type { Schedule } from "../runtime/schedule.js";
import { encodePass } from "../runtime/schedule.js";
import { Staging } from "../runtime/staging.js";
import { planeKey } from "../runtime/weights.js";
import { ExpertSlots } from "./expert_slots.js";

/** ``held`` slots of each layer. ``maxTokens`` of a batch. */
export interface ExpertCacheParts {
  readonly mixture: Mixture;
  readonly held: number;
  readonly maxTokens: number;
  readonly manifest: Manifest;
  readonly allocator: Allocator;
  /** The weights by `planeKey`, and the plan's buffers by name. */
  readonly weights: ReadonlyMap<string, GPUBuffer>;
  readonly buffers: ReadonlyMap<string, GPUBuffer>;
  /** The shards that hold experts, by number. */
  readonly files: ReadonlyMap<number, Blob>;
}

/** Counts of experts that batches needed: those that were on the device, those that were read, and their bytes. */
export interface ExpertCounts {
  readonly hits: number;
  readonly reads: number;
  readonly bytesRead: number;
}

export class ExpertCache {
  readonly #counts = { hits: 0, reads: 0, bytesRead: 0 };
  readonly #layers: readonly (readonly [ExpertLayer, ExpertSlots])[];
  readonly #staging: Staging;

  constructor(private readonly parts: ExpertCacheParts) {
    const { mixture, held, maxTokens, allocator } = parts;
    this.#layers = mixture.layers.map((layer) => [layer, new ExpertSlots(held)]);
    this.#staging = new Staging(allocator, "chosen experts", 4 * maxTokens * mixture.chosen, 1);
  }

  get counts(): ExpertCounts {
    return { ...this.#counts };
  }

  /**
   * Run the steps of a batch from ``start`` until before ``end``. The host waits for each layer's choice of experts.
   * Throws DeviceError if an expert cannot be read.
   */
  async run(schedule: Schedule, dims: Dims, start = 0, end?: number): Promise<void> {
    const { queue } = this.parts.allocator.device;
    let next = start;
    for (const [layer, slots] of this.#layers) {
      if (layer.start < start || layer.start >= (end ?? Infinity)) continue;
      const chosen = await this.#choice(schedule, dims, next, layer);
      const waiting = new Set(chosen);
      while (waiting.size > 0) {
        const turn = slots.take(waiting);
        this.#counts.hits += turn.slots.size - turn.missing.length;
        await this.#load(layer, slots, turn.slots, turn.missing);
        const places = chosen.map((expert) => turn.slots.get(expert) ?? -1);
        queue.writeBuffer(this.#chosenBuffer(layer), 0, places);
        this.#submit((encoder) => {
          encodePass(encoder, schedule.dispatches(dims, layer.start, layer.end));
        });
        for (const expert of turn.slots.keys()) waiting.delete(expert);
      }
      next = layer.end;
    }
    this.#submit((encoder) => {
      encodePass(encoder, schedule.dispatches(dims, next, end));
    });
  }

  /** Run the steps before a layer's experts, and read which experts its router has chosen, (S * chosen,). */
  async #choice(schedule: Schedule, dims: Dims, start: number, layer: ExpertLayer): Promise<Int32Array<ArrayBuffer>> {
    const size = 4 * (dims.S ?? 0) * this.parts.mixture.chosen;
    const read = this.#submit((encoder) => {
      encodePass(encoder, schedule.dispatches(dims, start, layer.start));
      return this.#staging.copy(encoder, [{ source: this.#chosenBuffer(layer), size }]);
    });
    return new Int32Array(await read());
  }

  /** Read experts and write them into their slots, after the work that was submitted before. */
  async #load(
    layer: ExpertLayer,
    slots: ExpertSlots,
    places: ReadonlyMap<number, number>,
    experts: readonly number[],
  ): Promise<void> {
    const { manifest } = this.parts;
    const planes = layer.weights.flatMap((name) =>
      (manifest.weights[name]?.planes ?? []).map((plane) => [planeKey(name, plane.name), plane] as const),
    );
    try {
      await Promise.all(
        experts.flatMap((expert) =>
          planes.map(([key, plane]) => this.#loadPart(key, plane, expert, places.get(expert) ?? 0)),
        ),
      );
    } catch (error) {
      slots.drop(experts);
      throw new DeviceError(
        `An expert of the model cannot be read (${messageOf(error)}); load the model again`,
        {},
        { cause: error },
      );
    }
    this.#counts.reads += experts.length;
  }

  /** An expert's rows of one plane. */
  async #loadPart(key: string, { shard, offset, size }: PlaneEntry, expert: number, slot: number): Promise<void> {
    const { allocator, files, mixture, weights } = this.parts;
    const bytes = size / mixture.number;
    const start = offset + expert * bytes;
    const [file, buffer] = [files.get(shard), weights.get(key)];
    if (file === undefined || buffer === undefined) throw new Error(`${key} is not loaded`);
    allocator.device.queue.writeBuffer(buffer, slot * bytes, await file.slice(start, start + bytes).arrayBuffer());
    this.#counts.bytesRead += bytes;
  }

  #submit<T>(encode: (encoder: GPUCommandEncoder) => T): T {
    const { device } = this.parts.allocator;
    const encoder = device.createCommandEncoder();
    const result = encode(encoder);
    device.queue.submit([encoder.finish()]);
    return result;
  }

  #chosenBuffer({ chosen }: ExpertLayer): GPUBuffer {
    const buffer = this.parts.buffers.get(chosen);
    if (buffer === undefined) throw new Error(`buffer ${chosen} is not allocated`);
    return buffer;
  }
}

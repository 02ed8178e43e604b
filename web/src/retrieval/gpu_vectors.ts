// A copy of the vectors on a GPU, in pages, and their exact search there.

import { DeviceError, messageOf } from "../errors.js";
import { BUFFER_USAGE, MAP_MODE } from "../runtime/gpu_flags.js";
import type { Ranked } from "./ranks.js";
import { best } from "./ranks.js";
import { BLOCK_SLOTS, GROUP_SLOTS, searchKernel } from "./search_kernel.js";
import type { Vectors } from "./vectors.js";

/** A page holds this many vectors, so that an index grows without a copy: 12.6 MB of 384 dimensions in float16. */
const PAGE_SLOTS = 16 * GROUP_SLOTS;
const NO_SCORE = -1e38;
const PARAM_BYTES = 32;

interface Page {
  readonly rows: GPUBuffer;
  readonly scales: GPUBuffer;
  readonly params: GPUBuffer;
}

export class GpuVectors {
  readonly #pages: Page[] = [];
  /** The slots that the GPU has. */
  #slots = 0;
  #last: Promise<unknown> = Promise.resolve();
  #isLost = false;

  private constructor(
    readonly adapter: string,
    private readonly device: GPUDevice,
    private readonly pipeline: GPUComputePipeline,
    private readonly vectors: Vectors,
  ) {
    void device.lost.then(() => (this.#isLost = true));
  }

  /**
   * Null if there is no adapter or device. ``software``: whether an adapter that computes on the CPU is used as well.
   */
  static async open(vectors: Vectors, gpu: GPU | undefined, software: boolean): Promise<GpuVectors | null> {
    const adapter = await gpu?.requestAdapter({ powerPreference: "high-performance" }).catch(() => null);
    if (adapter === undefined || adapter === null || (adapter.info.isFallbackAdapter && !software)) return null;
    const device = await adapter.requestDevice({ label: "nearfar retrieval" }).catch(() => null);
    if (device === null) return null;
    const module = device.createShaderModule({ code: searchKernel(vectors.type) });
    const pipeline = await device.createComputePipelineAsync({ layout: "auto", compute: { module } });
    const { description, vendor, architecture } = adapter.info;
    return new GpuVectors(description || `${vendor} ${architecture}`.trim(), device, pipeline, vectors);
  }

  get isLost(): boolean {
    return this.#isLost;
  }

  /**
   * As `Vectors.search`. Throws DeviceError if the device fails.
   */
  search(query: Float32Array, count: number): Promise<Ranked[]> {
    // Searches share the buffers of parameters, so they run one after the other.
    const found = this.#last.then(() => this.#search(query, count));
    this.#last = found.catch(() => undefined);
    return found;
  }

  destroy(): void {
    this.device.destroy();
  }

  async #search(query: Float32Array, count: number): Promise<Ranked[]> {
    const { device, vectors } = this;
    device.pushErrorScope("out-of-memory");
    device.pushErrorScope("validation");
    this.#upload();
    const perGroup = Math.min(count, GROUP_SLOTS);
    const groups = Math.ceil(vectors.slots / GROUP_SLOTS);
    const padded = new Float32Array(vectors.words * (vectors.type === "float16" ? 2 : 4));
    padded.set(query);
    const queryBuffer = this.#buffer(padded.byteLength, BUFFER_USAGE.STORAGE | BUFFER_USAGE.COPY_DST);
    device.queue.writeBuffer(queryBuffer, 0, padded);
    const size = Math.max(1, groups * perGroup) * 8;
    const found = this.#buffer(size, BUFFER_USAGE.STORAGE | BUFFER_USAGE.COPY_SRC);
    const staging = this.#buffer(size, BUFFER_USAGE.MAP_READ | BUFFER_USAGE.COPY_DST);
    try {
      const encoder = device.createCommandEncoder();
      const pass = encoder.beginComputePass();
      pass.setPipeline(this.pipeline);
      for (const [index, page] of this.#pages.entries()) {
        const first = index * PAGE_SLOTS;
        const slots = Math.min(PAGE_SLOTS, vectors.slots - first);
        const params = Uint32Array.of(vectors.words, slots, first, perGroup, first / GROUP_SLOTS);
        device.queue.writeBuffer(page.params, 0, params);
        const buffers = [page.params, page.rows, page.scales, queryBuffer, found];
        pass.setBindGroup(
          0,
          device.createBindGroup({
            layout: this.pipeline.getBindGroupLayout(0),
            entries: buffers.map((buffer, binding) => ({ binding, resource: { buffer } })),
          }),
        );
        pass.dispatchWorkgroups(Math.ceil(slots / GROUP_SLOTS));
      }
      pass.end();
      encoder.copyBufferToBuffer(found, 0, staging, 0, size);
      device.queue.submit([encoder.finish()]);
      const errors = await Promise.all([device.popErrorScope(), device.popErrorScope()]);
      for (const error of errors) if (error !== null) throw new Error(error.message);
      await staging.mapAsync(MAP_MODE.READ);
      return best(pairsOf(staging.getMappedRange().slice(0)), count);
    } catch (error) {
      throw new DeviceError(`The GPU cannot search the index (${messageOf(error)})`, {}, { cause: error });
    } finally {
      for (const buffer of [queryBuffer, found, staging]) buffer.destroy();
    }
  }

  /** Write the new vectors, and the scales, which also say which vectors were removed. */
  #upload(): void {
    const { vectors, device } = this;
    const { words, slots, rows } = vectors;
    while (this.#pages.length * PAGE_SLOTS < slots) this.#addPage();
    // A block that was not full is written again.
    const firstBlock = Math.floor(this.#slots / BLOCK_SLOTS);
    const blockWords = BLOCK_SLOTS * words;
    for (const [index, page] of this.#pages.entries()) {
      const first = index * PAGE_SLOTS;
      const count = Math.min(PAGE_SLOTS, slots - first);
      device.queue.writeBuffer(page.scales, 0, vectors.scales.subarray(first, first + count));
      const from = Math.max(0, firstBlock - first / BLOCK_SLOTS);
      const to = Math.ceil(count / BLOCK_SLOTS);
      if (slots === this.#slots || from >= to) continue;
      const blocks = new Uint32Array((to - from) * blockWords);
      for (let slot = from * BLOCK_SLOTS; slot < count; slot++) {
        const row = (first + slot) * words;
        const target = (Math.floor(slot / BLOCK_SLOTS) - from) * blockWords + (slot % BLOCK_SLOTS);
        for (let word = 0; word < words; word++) blocks[target + word * BLOCK_SLOTS] = rows[row + word] ?? 0;
      }
      device.queue.writeBuffer(page.rows, from * blockWords * 4, blocks);
    }
    this.#slots = slots;
  }

  #addPage(): void {
    const usage = BUFFER_USAGE.STORAGE | BUFFER_USAGE.COPY_DST;
    this.#pages.push({
      rows: this.#buffer(PAGE_SLOTS * this.vectors.words * 4, usage),
      scales: this.#buffer(PAGE_SLOTS * 4, usage),
      params: this.#buffer(PARAM_BYTES, BUFFER_USAGE.UNIFORM | BUFFER_USAGE.COPY_DST),
    });
  }

  #buffer(size: number, usage: number): GPUBuffer {
    return this.device.createBuffer({ size, usage });
  }
}

function* pairsOf(bytes: ArrayBuffer): Generator<[number, number], void, undefined> {
  const scores = new Float32Array(bytes);
  const slots = new Uint32Array(bytes);
  for (let index = 0; index < scores.length; index += 2) {
    const score = scores[index] ?? NO_SCORE;
    // Removed vectors, and slots beyond the last one.
    if (score > NO_SCORE) yield [slots[index + 1] ?? 0, score];
  }
}

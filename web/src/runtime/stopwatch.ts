// Measures the time of a compute pass on the GPU in milliseconds: by the device's own clock if it has
// "timestamp-query", otherwise by the host's clock, less the time of an empty pass.

import type { Allocator } from "./allocator.js";
import { BUFFER_USAGE, MAP_MODE } from "./gpu_flags.js";

type Encode = (pass: GPUComputePassEncoder) => void;

interface Timestamps {
  readonly queries: GPUQuerySet;
  readonly resolved: GPUBuffer;
  readonly staging: GPUBuffer;
}

// Two 64-bit times, in nanoseconds.
const TIMES_BYTES = 16;

export class Stopwatch {
  readonly #timestamps: Timestamps | null;
  #emptyMs: number | null = null;

  constructor(private readonly allocator: Allocator) {
    const { device } = allocator;
    this.#timestamps = !device.features.has("timestamp-query")
      ? null
      : {
          queries: device.createQuerySet({ label: "stopwatch", type: "timestamp", count: 2 }),
          resolved: allocator.allocate("stopwatch", TIMES_BYTES, BUFFER_USAGE.QUERY_RESOLVE | BUFFER_USAGE.COPY_SRC),
          staging: allocator.allocate("stopwatch readback", TIMES_BYTES, BUFFER_USAGE.MAP_READ | BUFFER_USAGE.COPY_DST),
        };
  }

  /** The pass is submitted before this returns. One call at a time. */
  async time(encode: Encode): Promise<number> {
    const byDevice = this.#timestamps === null ? null : await this.#byDevice(this.#timestamps, encode);
    // Some drivers offer the clock but leave it at zero.
    if (byDevice !== null && byDevice > 0) return byDevice;
    this.#emptyMs ??= Math.min(await this.#byHost(nothing), await this.#byHost(nothing));
    return Math.max((await this.#byHost(encode)) - this.#emptyMs, 0);
  }

  async #byDevice({ queries, resolved, staging }: Timestamps, encode: Encode): Promise<number> {
    const { device } = this.allocator;
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass({
      timestampWrites: { querySet: queries, beginningOfPassWriteIndex: 0, endOfPassWriteIndex: 1 },
    });
    encode(pass);
    pass.end();
    encoder.resolveQuerySet(queries, 0, 2, resolved, 0);
    encoder.copyBufferToBuffer(resolved, 0, staging, 0, TIMES_BYTES);
    device.queue.submit([encoder.finish()]);
    await staging.mapAsync(MAP_MODE.READ);
    const [start = 0n, end = 0n] = new BigUint64Array(staging.getMappedRange());
    staging.unmap();
    return Number(end - start) / 1e6;
  }

  async #byHost(encode: Encode): Promise<number> {
    const { device } = this.allocator;
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    encode(pass);
    pass.end();
    const start = performance.now();
    device.queue.submit([encoder.finish()]);
    await device.queue.onSubmittedWorkDone();
    return performance.now() - start;
  }
}

function nothing(): void {
  // An empty pass.
}

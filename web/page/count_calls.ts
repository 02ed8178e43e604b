// Counts the calls of WebGPU by wrapping the methods of its classes, until `stop`. The calls themselves are unchanged.

/** The WebGPU calls of one or more steps. */
export interface CallCounts {
  readonly dispatches: number;
  readonly submits: number;
  readonly passes: number;
  readonly bind_groups: number;
  readonly buffers: number;
  readonly write_buffers: number;
  readonly bytes_read_back: number;
}

export interface CallCounter {
  read(): CallCounts;
  /** Bytes of the buffers that were created since the start and are not destroyed. */
  bufferBytes(): number;
  /** Host time of all writeBuffer calls, in milliseconds. */
  writeMs(): number;
  /** Restore the original methods. */
  stop(): void;
}

/** The WebGPU classes whose calls are counted. In a page they are global. */
export interface WebGPUClasses {
  readonly GPUComputePassEncoder: { readonly prototype: object };
  readonly GPUCommandEncoder: { readonly prototype: object };
  readonly GPUQueue: { readonly prototype: object };
  readonly GPUDevice: { readonly prototype: object };
  readonly GPUBuffer: { readonly prototype: object };
}

type Method = (this: object, ...args: unknown[]) => unknown;

const MAP_READ = 1;

export const NO_CALLS: CallCounts = {
  dispatches: 0,
  submits: 0,
  passes: 0,
  bind_groups: 0,
  buffers: 0,
  write_buffers: 0,
  bytes_read_back: 0,
};

export function countCalls(classes: WebGPUClasses = globalThis): CallCounter {
  const counts: Record<keyof CallCounts, number> = { ...NO_CALLS };
  const sizes = new Map<object, number>();
  let writeMs = 0;
  const undo: (() => void)[] = [];

  /** Call ``after`` after each call that returned, with its object, its result and its duration. */
  const wrap = (
    owner: { readonly prototype: object },
    name: string,
    after: (self: object, result: unknown, ms: number) => void,
  ): void => {
    const prototype = owner.prototype as Record<string, Method>;
    const method = prototype[name];
    if (method === undefined) throw new Error(`this WebGPU has no ${name}`);
    prototype[name] = function (...args) {
      const start = performance.now();
      const result = method.apply(this, args);
      after(this, result, performance.now() - start);
      return result;
    };
    undo.push(() => {
      prototype[name] = method;
    });
  };
  const count = (owner: { readonly prototype: object }, name: string, key: keyof CallCounts): void => {
    wrap(owner, name, () => counts[key]++);
  };

  count(classes.GPUComputePassEncoder, "dispatchWorkgroups", "dispatches");
  count(classes.GPUComputePassEncoder, "dispatchWorkgroupsIndirect", "dispatches");
  count(classes.GPUQueue, "submit", "submits");
  count(classes.GPUCommandEncoder, "beginComputePass", "passes");
  count(classes.GPUDevice, "createBindGroup", "bind_groups");
  wrap(classes.GPUDevice, "createBuffer", (_, buffer) => {
    counts.buffers++;
    sizes.set(buffer as object, (buffer as { readonly size: number }).size);
  });
  wrap(classes.GPUBuffer, "destroy", (buffer) => sizes.delete(buffer));
  wrap(classes.GPUQueue, "writeBuffer", (_, __, ms) => {
    counts.write_buffers++;
    writeMs += ms;
  });
  wrap(classes.GPUBuffer, "getMappedRange", (buffer, range) => {
    // A buffer can also be mapped for writing.
    if (((buffer as { readonly usage: number }).usage & MAP_READ) !== 0)
      counts.bytes_read_back += (range as ArrayBuffer).byteLength;
  });

  return {
    read: () => ({ ...counts }),
    bufferBytes: () => [...sizes.values()].reduce((sum, size) => sum + size, 0),
    writeMs: () => writeMs,
    stop: () => {
      for (const back of undo.splice(0)) back();
    },
  };
}

/** The median of each count over steps; null without steps. */
export function medianCounts(steps: readonly CallCounts[]): CallCounts | null {
  const [first] = steps;
  if (first === undefined) return null;
  const keys = Object.keys(first) as (keyof CallCounts)[];
  return Object.fromEntries(keys.map((key) => [key, median(steps.map((step) => step[key]))])) as unknown as CallCounts;
}

/** The median; for an even number of values, the mean of the middle two. */
export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = sorted.length >> 1;
  const upper = sorted[middle] ?? Number.NaN;
  return sorted.length % 2 === 1 ? upper : ((sorted[middle - 1] ?? upper) + upper) / 2;
}

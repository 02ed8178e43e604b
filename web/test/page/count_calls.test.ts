import { expect, test } from "vitest";

import { NO_CALLS, countCalls, median, medianCounts } from "../../page/count_calls.js";

/* oxlint-disable typescript/no-empty-function */
/** The counted classes of WebGPU, with results that the tests read. */
function fakeClasses() {
  class GPUComputePassEncoder {
    dispatchWorkgroups(): void {}
    dispatchWorkgroupsIndirect(): void {}
  }
  class GPUCommandEncoder {
    beginComputePass(): GPUComputePassEncoder {
      return new GPUComputePassEncoder();
    }
  }
  class GPUQueue {
    submit(): void {}
    writeBuffer(): void {}
  }
  class GPUBuffer {
    constructor(
      readonly size: number,
      readonly usage: number,
    ) {}
    destroy(): void {}
    getMappedRange(offset: number, size: number): ArrayBuffer {
      return new ArrayBuffer(size - offset);
    }
  }
  class GPUDevice {
    createBuffer({ size, usage }: { size: number; usage: number }): GPUBuffer {
      return new GPUBuffer(size, usage);
    }
    createBindGroup(): void {}
  }
  return { GPUComputePassEncoder, GPUCommandEncoder, GPUQueue, GPUBuffer, GPUDevice };
}
/* oxlint-enable typescript/no-empty-function */

test("every call is counted and goes through", () => {
  const classes = fakeClasses();
  const counter = countCalls(classes);
  const pass = new classes.GPUCommandEncoder().beginComputePass();
  pass.dispatchWorkgroups();
  pass.dispatchWorkgroupsIndirect();
  const queue = new classes.GPUQueue();
  queue.writeBuffer();
  queue.submit();
  const device = new classes.GPUDevice();
  device.createBindGroup();
  expect(device.createBuffer({ size: 48, usage: 8 })).toMatchObject({ size: 48, usage: 8 });
  expect(counter.read()).toEqual({
    dispatches: 2,
    submits: 1,
    passes: 1,
    bind_groups: 1,
    buffers: 1,
    write_buffers: 1,
    bytes_read_back: 0,
  });
});

test("only buffers that are mapped for reading count as read back", () => {
  const classes = fakeClasses();
  const counter = countCalls(classes);
  const device = new classes.GPUDevice();
  device.createBuffer({ size: 16, usage: 1 | 8 }).getMappedRange(4, 16);
  device.createBuffer({ size: 16, usage: 2 | 4 }).getMappedRange(0, 16);
  expect(counter.read().bytes_read_back).toBe(12);
});

test("a destroyed buffer no longer takes memory", () => {
  const classes = fakeClasses();
  const counter = countCalls(classes);
  const device = new classes.GPUDevice();
  const first = device.createBuffer({ size: 16, usage: 8 });
  device.createBuffer({ size: 100, usage: 8 });
  first.destroy();
  first.destroy();
  expect(counter.bufferBytes()).toBe(100);
});

test("once stopped, nothing is counted and the methods are as before", () => {
  const classes = fakeClasses();
  const submit = (): unknown => Reflect.get(classes.GPUQueue.prototype, "submit");
  const before = submit();
  const counter = countCalls(classes);
  expect(submit()).not.toBe(before);
  counter.stop();
  expect(submit()).toBe(before);
  new classes.GPUQueue().submit();
  expect(counter.read()).toEqual(NO_CALLS);
});

test("the median of each count is computed separately", () => {
  const steps = [
    { ...NO_CALLS, dispatches: 9, buffers: 1 },
    { ...NO_CALLS, dispatches: 4 },
    { ...NO_CALLS, dispatches: 5 },
  ];
  expect(medianCounts(steps)).toEqual({ ...NO_CALLS, dispatches: 5 });
  expect(medianCounts([])).toBeNull();
  expect(median([4, 1, 3, 2])).toBe(2.5);
});

// The memory that a device gives, on devices that refuse buffers beyond a size.

import { afterEach, expect, test, vi } from "vitest";

import { allocate, reserve } from "../../src/probe/memory.js";

const MIB = 2 ** 20;

class FakeDevice {
  held = 0;
  most = 0;
  #errors: (GPUError | null)[] = [];

  /** ``room`` in bytes. */
  constructor(private readonly room: number) {}

  readonly queue = {
    submit: (): void => undefined,
    onSubmittedWorkDone: (): Promise<undefined> => Promise.resolve(undefined),
  };

  pushErrorScope(): void {
    this.#errors.push(null);
  }

  popErrorScope(): Promise<GPUError | null> {
    return Promise.resolve(this.#errors.pop() ?? null);
  }

  createBuffer({ size }: GPUBufferDescriptor): GPUBuffer {
    const fits = this.held + size <= this.room;
    if (!fits) this.#errors[0] = { message: "no memory" };
    if (fits) this.held += size;
    this.most = Math.max(this.most, this.held);
    const destroy = (): void => {
      if (fits) this.held -= size;
    };
    return { size, destroy } as unknown as GPUBuffer;
  }

  createCommandEncoder(): unknown {
    return { copyBufferToBuffer: () => undefined, finish: () => ({}) };
  }
}

test.each([
  ["a device with room", 1000, 300, 300, false],
  ["a device without", 300, 1000, 256, true],
  ["a device with none", 10, 1000, 0, true],
  ["nothing", 1000, 0, 0, false],
])("%s gives what it has", async (_, room, wanted, given, isFull) => {
  const device = new FakeDevice(room * MIB);
  const found = await allocate(device as unknown as GPUDevice, wanted * MIB);
  expect(found).toMatchObject({ bytes: given * MIB, isFull });
  // All of it is given back.
  expect(device.held).toBe(0);
  expect(device.most).toBe(given * MIB);
});

test("on a slow device it stops early, which is no refusal", async () => {
  let now = 0;
  const device = new FakeDevice(Infinity);
  const found = await allocate(device as unknown as GPUDevice, 10_000 * MIB, () => (now += 150));
  expect(found.isFull).toBe(false);
  expect(found.bytes).toBeLessThan(1000 * MIB);
});

afterEach(() => {
  vi.unstubAllGlobals();
});

test("a driver on the CPU gets as much as the page has addresses for", () => {
  expect(reserve(100 * MIB)).toEqual({ bytes: 100 * MIB, isFull: false, copyBytesPerSecond: null });
  let room = 300 * MIB;
  class Limited {
    constructor(readonly byteLength: number) {
      if (byteLength > room) throw new RangeError("Array buffer allocation failed");
      room -= byteLength;
    }
  }
  vi.stubGlobal("ArrayBuffer", Limited);
  expect(reserve(1000 * MIB)).toEqual({ bytes: 256 * MIB, isFull: true, copyBytesPerSecond: null });
});

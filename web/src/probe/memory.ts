// What a device really gives: allocates buffers up to a size, and copies between two of them.

import { BUFFER_USAGE } from "../runtime/gpu_flags.js";

/** Every device has buffers of this size (W3C, WebGPU, 3.6.2), and a few of them are allocated at a time. */
const PIECE_BYTES = 64 * 2 ** 20;
const TIME_MS = 400;
const COPIES = 4;
/** Smaller copies may stay in caches. */
const LEAST_COPY_BYTES = 16 * 2 ** 20;

export interface Allocated {
  /** At most the bytes that were asked for, and fewer if the time was over. */
  readonly bytes: number;
  /** Whether the device refused more. */
  readonly isFull: boolean;
  /** Bytes read and written in a second by a copy; null if there was no room for two buffers, or no time. */
  readonly copyBytesPerSecond: number | null;
}

/**
 * Allocate ``wanted`` bytes in pieces, until the device refuses one, and free them. A driver may promise memory that it
 * has not got, so that this is no proof; it stops early on a slow device.
 */
export async function allocate(device: GPUDevice, wanted: number, now = () => performance.now()): Promise<Allocated> {
  const pieces: GPUBuffer[] = [];
  let [bytes, isFull] = [0, false];
  const start = now();
  try {
    while (bytes < wanted && !isFull && (now() - start < TIME_MS || pieces.length < 2)) {
      const size = Math.min(PIECE_BYTES, Math.ceil((wanted - bytes) / 16) * 16);
      device.pushErrorScope("out-of-memory");
      device.pushErrorScope("validation");
      const usage = BUFFER_USAGE.STORAGE | BUFFER_USAGE.COPY_DST | BUFFER_USAGE.COPY_SRC;
      const piece = device.createBuffer({ label: "probe", size, usage });
      const errors = [await device.popErrorScope(), await device.popErrorScope()];
      pieces.push(piece);
      isFull = errors.some((error) => error !== null);
      if (!isFull) bytes = Math.min(wanted, bytes + size);
    }
    return { bytes, isFull, copyBytesPerSecond: isFull ? null : await copySpeed(device, pieces) };
  } finally {
    for (const piece of pieces) piece.destroy();
  }
}

/**
 * As `allocate`, in the page's own memory, which a driver on the CPU takes: some of these end the process instead of
 * refusing a buffer. Nothing is written, so that only addresses are taken.
 */
export function reserve(wanted: number): Allocated {
  const pieces: ArrayBuffer[] = [];
  let bytes = 0;
  try {
    while (bytes < wanted) {
      const piece = new ArrayBuffer(Math.min(PIECE_BYTES, wanted - bytes));
      pieces.push(piece);
      bytes += piece.byteLength;
    }
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
  }
  return { bytes, isFull: bytes < wanted, copyBytesPerSecond: null };
}

async function copySpeed(device: GPUDevice, [from, to]: readonly GPUBuffer[]): Promise<number | null> {
  if (from === undefined || to === undefined) return null;
  const size = Math.min(from.size, to.size);
  if (size < LEAST_COPY_BYTES) return null;
  const time = async (copies: number): Promise<number> => {
    const encoder = device.createCommandEncoder();
    for (let copy = 0; copy < copies; copy++) {
      const [source, target] = copy % 2 === 0 ? [from, to] : [to, from];
      encoder.copyBufferToBuffer(source, 0, target, 0, size);
    }
    const start = performance.now();
    device.queue.submit([encoder.finish()]);
    await device.queue.onSubmittedWorkDone();
    return performance.now() - start;
  };
  // The first one touches the memory for the first time.
  await time(2);
  const ms = (await time(1 + COPIES)) - (await time(1));
  return ms <= 0 ? null : (1000 * COPIES * 2 * size) / ms;
}

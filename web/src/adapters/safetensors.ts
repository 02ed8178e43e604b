// Reads the tensors of a safetensors file: the length of the header, the header as JSON, then the tensors' bytes.
// https://github.com/huggingface/safetensors#format

import { BundleError } from "../errors.js";

export interface Tensor {
  readonly shape: readonly number[];
  /** The values as float32; bfloat16 is the upper half of a float32. */
  values(): Float32Array<ArrayBuffer>;
}

const BYTES: Readonly<Record<string, number>> = { F32: 4, F16: 2, BF16: 2 };

/** ``file`` is what errors name. Throws BundleError for a damaged file, or another dtype than F32, F16 and BF16. */
export function readSafetensors(bytes: Uint8Array<ArrayBuffer>, file: string): ReadonlyMap<string, Tensor> {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const length = bytes.length < 8 ? Infinity : Number(view.getBigUint64(0, true));
  if (length > bytes.length - 8) throw damaged(file, "its header does not fit the file");
  const header = parse(bytes.subarray(8, 8 + length), file);
  const tensors = new Map<string, Tensor>();
  for (const [name, entry] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const { dtype, shape, data_offsets: offsets } = Object(entry) as Readonly<Record<string, unknown>>;
    const [start, end] = integers(offsets) ? offsets : [];
    if (!integers(shape) || typeof dtype !== "string" || start === undefined || end === undefined)
      throw damaged(file, `tensor ${name} has no dtype, shape or offsets`);
    const width = BYTES[dtype];
    if (width === undefined)
      throw new BundleError(`${file}: tensor ${name} has dtype ${dtype}, supported are F32, F16 and BF16; convert it`, {
        tensor: name,
        dtype,
      });
    const size = shape.reduce((product, count) => product * count, width);
    if (end - start !== size || 8 + length + end > bytes.length)
      throw damaged(file, `tensor ${name} has ${end - start} bytes, its shape needs ${size}, within the file`);
    const data = bytes.subarray(8 + length + start, 8 + length + end);
    tensors.set(name, { shape, values: () => floats(data, dtype) });
  }
  return tensors;
}

function floats(data: Uint8Array<ArrayBuffer>, dtype: string): Float32Array<ArrayBuffer> {
  // A copy begins at a multiple of 4 bytes.
  const { buffer } = data.slice();
  if (dtype === "F32") return new Float32Array(buffer);
  const halves = new Uint16Array(buffer);
  const bits = Uint32Array.from(halves, dtype === "BF16" ? (half) => half << 16 : bitsOfHalf);
  return new Float32Array(bits.buffer);
}

/** The float32 of a float16, as bits (IEEE 754). */
function bitsOfHalf(half: number): number {
  const sign = (half & 0x8000) << 16;
  const exponent = (half >> 10) & 31;
  const fraction = half & 0x3ff;
  if (exponent === 31) return sign | 0x7f800000 | (fraction << 13);
  if (exponent > 0) return sign | ((exponent + 112) << 23) | (fraction << 13);
  // A subnormal number: fraction * 2^-24.
  const [bits = 0] = new Uint32Array(Float32Array.of(fraction * 2 ** -24).buffer);
  return sign | bits;
}

function parse(bytes: Uint8Array<ArrayBuffer>, file: string): object {
  try {
    return Object(JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes))) as object;
  } catch (error) {
    throw damaged(file, "its header is not JSON", error);
  }
}

function integers(value: unknown): value is readonly number[] {
  return Array.isArray(value) && value.every((item) => Number.isSafeInteger(item) && (item as number) >= 0);
}

function damaged(file: string, what: string, cause?: unknown): BundleError {
  return new BundleError(`${file}: is not a whole safetensors file: ${what}; upload it again`, {}, { cause });
}

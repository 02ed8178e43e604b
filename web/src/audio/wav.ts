// Reads WAV files: integers of 8 to 32 bits, and floats. Microsoft and IBM 1991; WAVE_FORMAT_EXTENSIBLE, 2001.
// `compiler/runtime/audio/wav.py` reads the same.

import { RequestError } from "../errors.js";

const INTEGERS = 1;
const FLOATS = 3;
const EXTENSIBLE = 0xfffe;
/** The length of a file that was written to a pipe, whose end was not known. */
const UNKNOWN = 0xffffffff;

/** The samples of a file as stored, in whole frames of one sample for each channel. */
interface Format {
  readonly kind: number;
  readonly channels: number;
  readonly rate: number;
  readonly bits: number;
}

export interface Wav extends Format {
  readonly data: DataView;
  readonly frames: number;
}

export function isWav(bytes: Uint8Array): boolean {
  const head = String.fromCharCode(...bytes.subarray(0, 12));
  return /^(?:RIFF|RF64)[^]{4}WAVE$/.test(head);
}

/** A file's content, for which `isWav` holds. Throws RequestError for a damaged file and for other encodings. */
export function readWav(bytes: Uint8Array): Wav {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let format: Format | null = null;
  let start = 12;
  while (start + 8 <= view.byteLength) {
    const name = view.getUint32(start);
    const size = view.getUint32(start + 4, true);
    const body = start + 8;
    if (name === FORMAT) format = readFormat(view, body, Math.min(body + size, view.byteLength));
    else if (name === DATA) {
      if (format === null) break;
      // A file that is still being written, or that was cut, is read as far as it goes.
      const stop = size === UNKNOWN ? view.byteLength : Math.min(body + size, view.byteLength);
      const frame = (format.channels * format.bits) / 8;
      const frames = Math.floor((stop - body) / frame);
      return { ...format, frames, data: new DataView(view.buffer, view.byteOffset + body, frames * frame) };
    }
    start = body + size + (size % 2);
  }
  throw new RequestError("audio: is a WAV file without samples; it is damaged");
}

/** "fmt " and "data". */
const FORMAT = 0x666d7420;
const DATA = 0x64617461;

function readFormat(view: DataView, start: number, end: number): Format {
  if (end - start < 16)
    throw new RequestError(`audio: is a damaged WAV file: its format has ${end - start} bytes; send the whole file`);
  const named = view.getUint16(start, true);
  const kind = named === EXTENSIBLE && end - start >= 26 ? view.getUint16(start + 24, true) : named;
  const channels = view.getUint16(start + 2, true);
  const rate = view.getUint32(start + 4, true);
  const frame = view.getUint16(start + 12, true);
  const bits = view.getUint16(start + 14, true);
  const known = kind === INTEGERS ? [8, 16, 24, 32] : kind === FLOATS ? [32, 64] : [];
  if (!known.includes(bits))
    throw new RequestError(
      `audio: is a WAV file of encoding ${kind} with ${bits} bits, which is not supported; convert it to 16-bit PCM`,
    );
  if (channels === 0 || rate === 0 || frame !== (channels * bits) / 8)
    throw new RequestError(
      `audio: is a damaged WAV file: ${channels} channels, ${rate} Hz, ${frame} bytes a frame; send the whole file`,
    );
  return { kind, channels, rate, bits };
}

/** The mean of all channels (frames,), integers as numbers from -1 to 1. */
export function monoOfWav({ kind, channels, bits, data, frames }: Wav): Float32Array<ArrayBuffer> {
  const mono = new Float32Array(frames);
  const read = readerOf(kind, bits, data);
  const size = bits / 8;
  for (let frame = 0, at = 0; frame < frames; frame++) {
    let sum = 0;
    for (let channel = 0; channel < channels; channel++, at += size) sum += Math.fround(read(at));
    mono[frame] = sum / channels;
  }
  return mono;
}

function readerOf(kind: number, bits: number, data: DataView): (at: number) => number {
  if (kind === FLOATS) return bits === 32 ? (at) => data.getFloat32(at, true) : (at) => data.getFloat64(at, true);
  switch (bits) {
    case 8:
      return (at) => (data.getUint8(at) - 128) / 128;
    case 16:
      return (at) => data.getInt16(at, true) / 2 ** 15;
    case 24:
      // As the upper three bytes of an integer of 32 bits.
      return (at) => ((data.getUint16(at, true) << 8) | (data.getUint8(at + 2) << 24)) / 2 ** 31;
    default:
      return (at) => data.getInt32(at, true) / 2 ** 31;
  }
}

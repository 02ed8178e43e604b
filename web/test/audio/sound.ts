// Sounds for tests, as tests/sounds.py makes them.

export function pattern(samples: number): Float32Array<ArrayBuffer> {
  return Float32Array.from({ length: samples }, (_, index) => {
    const value = ((index * index * 7 + index * 13) % 2003) / 2003 - 0.5;
    return (value * ((Math.floor(index / 4096) % 5) + 1)) / 5;
  });
}

/** A file of 16-bit samples, or of floats, with a chunk of an odd size before them. */
export function wavOf(
  samples: Uint8Array,
  { kind = 1, bits = 16, channels = 1, rate = 16_000, more = new Uint8Array() } = {},
): Uint8Array<ArrayBuffer> {
  const frame = (channels * bits) / 8;
  const head = 12 + 8 + 16 + more.length + 12 + 8;
  const bytes = new Uint8Array(head + samples.length);
  const view = new DataView(bytes.buffer);
  const name = (at: number, text: string): void => {
    bytes.set(new TextEncoder().encode(text), at);
  };
  name(0, "RIFF");
  view.setUint32(4, bytes.length - 8, true);
  name(8, "WAVEfmt ");
  view.setUint32(16, 16 + more.length, true);
  view.setUint16(20, kind, true);
  view.setUint16(22, channels, true);
  view.setUint32(24, rate, true);
  view.setUint32(28, rate * frame, true);
  view.setUint16(32, frame, true);
  view.setUint16(34, bits, true);
  bytes.set(more, 36);
  const list = 36 + more.length;
  name(list, "LIST");
  view.setUint32(list + 4, 3, true);
  name(list + 8, "abc");
  name(list + 12, "data");
  view.setUint32(list + 16, samples.length, true);
  bytes.set(samples, list + 20);
  return bytes;
}

/** Samples as integers of 8 to 32 bits. */
export function integers(samples: Float32Array, bits: number): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array((samples.length * bits) / 8);
  for (const [index, sample] of samples.entries()) {
    let value = Math.round(sample * (2 ** (bits - 1) - 1));
    if (bits === 8) value += 128;
    for (let byte = 0; byte < bits / 8; byte++) bytes[(index * bits) / 8 + byte] = value >> (8 * byte);
  }
  return bytes;
}

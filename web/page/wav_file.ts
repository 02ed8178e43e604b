// A recording as a WAV file, which every browser plays, and in which it can seek.

const HEADER = 44;

/** One channel of 16-bit integers at ``rate`` Hz. Microsoft and IBM 1991. */
export function wavFile(samples: Float32Array, rate: number): Blob {
  const size = 2 * samples.length;
  const view = new DataView(new ArrayBuffer(HEADER + size));
  const text = (at: number, name: string): void => {
    for (let index = 0; index < name.length; index++) view.setUint8(at + index, name.charCodeAt(index));
  };
  text(0, "RIFF");
  view.setUint32(4, HEADER - 8 + size, true);
  text(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  // Integers of one channel; bytes a second, bytes a frame, bits a sample.
  view.setUint16(20, 1, true);
  view.setUint16(22, 1, true);
  view.setUint32(24, rate, true);
  view.setUint32(28, 2 * rate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  text(36, "data");
  view.setUint32(40, size, true);
  for (const [index, sample] of samples.entries())
    view.setInt16(HEADER + 2 * index, Math.max(-32768, Math.min(32767, Math.round(sample * 32768))), true);
  return new Blob([view], { type: "audio/wav" });
}

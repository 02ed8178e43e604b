// The frames of sound that Parakeet reads: logarithms of the energy in bands of the mel scale, each of which has the mean
// 0 and the standard deviation 1 over the sound. NVIDIA 2019 (NeMo). `compiler/runtime/audio/parakeet_frames.py` computes
// the same.

import { RequestError } from "../errors.js";
import type { Frames } from "./log_mel.js";
import { HOP, melBands } from "./log_mel.js";
import { FRAME, Spectrum } from "./spectrum.js";

/** The samples of a spectrum, in whose middle a frame is, and the part of the sample before that is subtracted. */
const SPECTRUM = 512;
const PREEMPHASIS = Math.fround(0.97);
/** What is added to energies before their logarithm, and to standard deviations. */
const LEAST_ENERGY = 2 ** -24;
const LEAST_DEVIATION = 1e-5;
/** The fewest samples: of two frames, because one has no deviation. */
export const FEWEST_SAMPLES = 2 * HOP;

/** The frames (bins, N / 160) of samples (N,) at 16 kHz. Throws RequestError for samples that are not finite. */
export function parakeetFrames(samples: Float32Array, bins: number): Frames {
  const count = Math.floor(samples.length / HOP);
  const rising = Float32Array.from(samples, (sample, index) =>
    index === 0 ? sample : sample - Math.fround(PREEMPHASIS * Number(samples[index - 1])),
  );
  const bands = melBands(bins, SPECTRUM);
  const spectrum = new Spectrum(SPECTRUM);
  const window = symmetricHann();
  const [first, second] = [new Float64Array(SPECTRUM), new Float64Array(SPECTRUM)];
  const [ofFirst, ofSecond] = [new Float64Array(SPECTRUM / 2 + 1), new Float64Array(SPECTRUM / 2 + 1)];
  const energies = new Float64Array(bins * count);
  for (let frame = 0; frame < count; frame += 2) {
    cut(rising, frame * HOP, window, first);
    if (frame + 1 < count) cut(rising, (frame + 1) * HOP, window, second);
    else second.fill(0);
    spectrum.energies(first, second, ofFirst, ofSecond);
    for (const [bin, band] of bands.entries()) {
      const at = bin * count + frame;
      energies[at] = Math.log(band.energyOf(ofFirst) + LEAST_ENERGY);
      if (frame + 1 < count) energies[at + 1] = Math.log(band.energyOf(ofSecond) + LEAST_ENERGY);
    }
  }
  if (!energies.every(Number.isFinite))
    throw new RequestError("audio: has samples that are not finite numbers; it is damaged");
  const data = new Float32Array(bins * count);
  for (let bin = 0; bin < bins; bin++) {
    const own = energies.subarray(bin * count, (bin + 1) * count);
    const mean = own.reduce((sum, value) => sum + value, 0) / count;
    const squares = own.reduce((sum, value) => sum + (value - mean) ** 2, 0);
    const deviation = Math.sqrt(squares / (count - 1)) + LEAST_DEVIATION;
    for (let frame = 0; frame < count; frame++) data[bin * count + frame] = (Number(own[frame]) - mean) / deviation;
  }
  return { data, bins, count };
}

/** The samples around one, times ``window``; beyond the ends of the sound they are zeros. */
function cut(samples: Float32Array, centre: number, window: Float64Array, points: Float64Array): void {
  const start = centre - SPECTRUM / 2;
  for (let index = 0; index < SPECTRUM; index++) points[index] = (samples[start + index] ?? 0) * Number(window[index]);
}

/** The symmetric window of a frame, in the middle of a spectrum. */
function symmetricHann(): Float64Array {
  const before = (SPECTRUM - FRAME) / 2;
  return Float64Array.from({ length: SPECTRUM }, (_, index) => {
    const at = index - before;
    return at < 0 || at >= FRAME ? 0 : 0.5 - 0.5 * Math.cos((2 * Math.PI * at) / (FRAME - 1));
  });
}

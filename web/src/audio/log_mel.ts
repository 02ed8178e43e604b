// The frames of sound that Whisper reads: logarithms of the energy in bands of the mel scale. Radford et al. 2022.
// `compiler/runtime/audio/log_mel.py` computes the same.
//
// A frame is 25 ms, one begins every 10 ms. The bands are triangles on Slaney's scale, which is linear below 1 kHz, from
// 0 to 8 kHz, with equal areas. Numbers more than 8 powers of ten below the loudest one are raised to that.

import { RequestError } from "../errors.js";
import { SAMPLE_RATE } from "./resample.js";
import { FRAME, FREQUENCIES, Spectrum } from "./spectrum.js";

/** The samples from one frame to the next. */
export const HOP = 160;
/** The logarithm's least argument, and how far the least number is below the largest. */
const LEAST_ENERGY = 1e-10;
const RANGE = 8;
/** The frequency up to which the mel scale is linear, the mels there, and those of a factor of 6.4 above it. */
const LINEAR_HERTZ = 1000;
const LINEAR_MELS = 15;
const LOGARITHMIC_MELS = 27;
/** The most bands: with more, some would have no frequency of the spectrum. */
const MOST_BINS = 128;

/** Frames (bins, count), row by row. */
export interface Frames {
  readonly data: Float32Array<ArrayBuffer>;
  readonly bins: number;
  readonly count: number;
}

/**
 * The frames (bins, N / 160) of samples (N,) at 16 kHz. The samples at both ends are mirrored, so that a frame is centred
 * on its first sample. Throws RequestError for half a frame or less, for samples that are not finite, and for more than
 * 128 bins.
 */
export function logMel(samples: Float32Array, bins: number): Frames {
  if (!Number.isInteger(bins) || bins < 1 || bins > MOST_BINS)
    throw new RequestError(`audio: ${bins} mel bins are not supported; models have 80 or 128, at most ${MOST_BINS}`);
  if (samples.length <= FRAME / 2)
    throw new RequestError(
      `audio: ${samples.length} samples are too few for a frame, which needs more than ${FRAME / 2}; add silence`,
    );
  const count = Math.floor(samples.length / HOP);
  const data = new Float32Array(bins * count);
  const bands = melBands(bins);
  const spectrum = new Spectrum();
  const window = hann();
  const [first, second] = [new Float64Array(FRAME), new Float64Array(FRAME)];
  const [ofFirst, ofSecond] = [new Float64Array(FREQUENCIES), new Float64Array(FREQUENCIES)];
  let largest = -Infinity;
  for (let frame = 0; frame < count; frame += 2) {
    cut(samples, frame * HOP, window, first);
    if (frame + 1 < count) cut(samples, (frame + 1) * HOP, window, second);
    else second.fill(0);
    spectrum.energies(first, second, ofFirst, ofSecond);
    for (let bin = 0; bin < bins; bin++) {
      const band = bands[bin];
      if (band === undefined) continue;
      const at = bin * count + frame;
      data[at] = Math.log10(Math.max(band.energyOf(ofFirst), LEAST_ENERGY));
      if (frame + 1 < count) data[at + 1] = Math.log10(Math.max(band.energyOf(ofSecond), LEAST_ENERGY));
    }
  }
  for (const value of data) largest = Math.max(largest, value);
  // Also a sum of numbers that are no samples of sound, such as infinity.
  if (!Number.isFinite(largest))
    throw new RequestError("audio: has samples that are not finite numbers; it is damaged");
  const least = Math.fround(largest - RANGE);
  // Each operation is rounded to float32.
  for (let index = 0; index < data.length; index++)
    data[index] = Math.fround(Math.max(Number(data[index]), least) + 4) / 4;
  return { data, bins, count };
}

/** The samples of a frame that is centred on one, times ``window``; beyond the ends of the sound they are mirrored. */
function cut(samples: Float32Array, centre: number, window: Float64Array, frame: Float64Array): void {
  const last = samples.length - 1;
  const start = centre - FRAME / 2;
  for (let index = 0; index < FRAME; index++) {
    const at = Math.abs(start + index);
    frame[index] = Number(samples[at > last ? 2 * last - at : at]) * Number(window[index]);
  }
}

/** The periodic window of a frame. */
function hann(): Float64Array {
  return Float64Array.from({ length: FRAME }, (_, index) => 0.5 - 0.5 * Math.cos((2 * Math.PI * index) / FRAME));
}

/** The weights of the frequencies from ``first`` on, outside of which they are zeros. */
export class Band {
  constructor(
    private readonly first: number,
    private readonly weights: Float64Array,
  ) {}

  energyOf(energies: Float64Array): number {
    let sum = 0;
    for (let index = 0; index < this.weights.length; index++)
      sum += Number(this.weights[index]) * Number(energies[this.first + index]);
    return sum;
  }
}

/** The bands of a spectrum of ``points``. */
export function melBands(bins: number, points = FRAME): readonly Band[] {
  const top = mels(SAMPLE_RATE / 2);
  const edges = Float64Array.from({ length: bins + 2 }, (_, index) => hertz((top * index) / (bins + 1)));
  return Array.from({ length: bins }, (_, bin) => {
    const [low = 0, centre = 0, high = 0] = edges.subarray(bin, bin + 3);
    const weights = Float64Array.from({ length: points / 2 + 1 }, (_weight, index) => {
      const frequency = (index * SAMPLE_RATE) / points;
      const [rising, falling] = [(frequency - low) / (centre - low), (high - frequency) / (high - centre)];
      return Math.max(0, Math.min(rising, falling)) * (2 / (high - low));
    });
    const first = Math.max(
      0,
      weights.findIndex((weight) => weight > 0),
    );
    return new Band(first, weights.slice(first, weights.findLastIndex((weight) => weight > 0) + 1));
  });
}

/** A frequency in Hz on Slaney's mel scale. */
function mels(frequency: number): number {
  if (frequency < LINEAR_HERTZ) return (LINEAR_MELS * frequency) / LINEAR_HERTZ;
  return LINEAR_MELS + (Math.log(frequency / LINEAR_HERTZ) * LOGARITHMIC_MELS) / Math.log(6.4);
}

/** The inverse of `mels`. */
function hertz(value: number): number {
  if (value < LINEAR_MELS) return (value * LINEAR_HERTZ) / LINEAR_MELS;
  return LINEAR_HERTZ * Math.exp(((value - LINEAR_MELS) * Math.log(6.4)) / LOGARITHMIC_MELS);
}

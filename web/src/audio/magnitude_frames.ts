// The frames of sound that Gemma 4 reads: logarithms of the magnitudes in bands of the HTK mel scale. Zhang et al. 2023
// (USM). `compiler/runtime/audio/magnitude_frames.py` computes the same, and tests/conformance/magnitude_frames.json holds
// both to their numbers.

import type { MelSpec } from "../runtime/manifest.js";
import { Band } from "./log_mel.js";
import { SAMPLE_RATE } from "./resample.js";
import { Spectrum } from "./spectrum.js";

/**
 * The first ``count`` frames (count, bins) of samples (N,) at 16 kHz, the first of which begins half a window before them,
 * with zeros.
 */
export function magnitudeFrames({ bins, window, hop, points, floor }: MelSpec, samples: Float32Array, count: number) {
  const frames = new Float32Array(count * bins);
  const bands = htkBands(bins, points);
  const spectrum = new Spectrum(points);
  const weights = Float64Array.from(
    { length: window },
    (_, index) => 0.5 - 0.5 * Math.cos((2 * Math.PI * index) / window),
  );
  const [first, second] = [new Float64Array(points), new Float64Array(points)];
  const [ofFirst, ofSecond] = [new Float64Array(points / 2 + 1), new Float64Array(points / 2 + 1)];
  const cut = (frame: number, into: Float64Array): void => {
    const start = frame * hop - Math.floor(window / 2);
    for (const [index, weight] of weights.entries()) into[index] = (samples[start + index] ?? 0) * weight;
  };
  for (let frame = 0; frame < count; frame += 2) {
    cut(frame, first);
    // Behind the last frame there is nothing to read.
    if (frame + 1 < count) cut(frame + 1, second);
    else second.fill(0);
    spectrum.energies(first, second, ofFirst, ofSecond);
    for (const [which, energies] of [ofFirst, ofSecond].entries()) {
      if (frame + which >= count) continue;
      const magnitudes = energies.map(Math.sqrt);
      for (const [bin, band] of bands.entries())
        frames[(frame + which) * bins + bin] = Math.log(band.energyOf(magnitudes) + floor);
    }
  }
  return frames;
}

/** Triangles of height 1 over the frequencies of a spectrum of ``points``. */
function htkBands(bins: number, points: number): readonly Band[] {
  const top = 2595 * Math.log10(1 + SAMPLE_RATE / 2 / 700);
  const edge = (index: number): number => 700 * (10 ** ((top * index) / (bins + 1) / 2595) - 1);
  return Array.from({ length: bins }, (_, bin) => {
    const [low, centre, high] = [edge(bin), edge(bin + 1), edge(bin + 2)];
    const weights = Float64Array.from({ length: points / 2 + 1 }, (_weight, index) => {
      const frequency = (index * SAMPLE_RATE) / points;
      return Math.max(0, Math.min((frequency - low) / (centre - low), (high - frequency) / (high - centre)));
    });
    return new Band(0, weights);
  });
}

// Converts the rate of sound: a low-pass filter of a windowed sinc, evaluated between the samples (Smith, "Digital Audio
// Resampling", 1984). The phase is linear.

/** The zeros of the filter on each side of its centre, at the lower of the two rates. */
const ZEROS = 32;
/** The end of the pass band, relative to half the lower rate, and the shape of Kaiser's window: 80 dB. */
const CUTOFF = 0.955;
const SHAPE = 7.86;
/** The most weights of all phases together. A rate that needs more uses the nearest phase. */
const MOST_WEIGHTS = 2 ** 22;

/** Samples at rate ``from`` as samples at rate ``to``, both in Hz. */
export function resample(samples: Float32Array, from: number, to: number): Float32Array<ArrayBuffer> {
  if (from === to) return new Float32Array(samples);
  const divisor = greatestCommonDivisor(from, to);
  const [up, down] = [to / divisor, from / divisor];
  // In samples of the input; even, because four weights are multiplied at a time.
  const half = 2 * Math.ceil((ZEROS / 2) * Math.max(1, from / to));
  const taps = 2 * half;
  const phases = Math.min(up, Math.floor(MOST_WEIGHTS / taps));
  const weights = filters(phases, half, CUTOFF * Math.min(1, to / from));
  const found = new Float32Array(Math.ceil((samples.length * up) / down));
  // Silence precedes and follows, so that sample ``place - half + 1`` of the input is at ``place`` here.
  const padded = new Float32Array(samples.length + taps);
  padded.set(samples, half - 1);
  for (let index = 0; index < found.length; index++) {
    // The place in the input: a sample, and a part of the way to the next one.
    const place = index * down;
    let sample = Math.floor(place / up);
    let phase = Math.round(((place - sample * up) * phases) / up);
    if (phase === phases) [sample, phase] = [sample + 1, 0];
    // Sums that do not wait for each other are computed at the same time.
    let [a, b, c, d] = [0, 0, 0, 0];
    for (let tap = 0, at = phase * taps; tap < taps; tap += 4, at += 4) {
      a += Number(weights[at]) * Number(padded[sample + tap]);
      b += Number(weights[at + 1]) * Number(padded[sample + tap + 1]);
      c += Number(weights[at + 2]) * Number(padded[sample + tap + 2]);
      d += Number(weights[at + 3]) * Number(padded[sample + tap + 3]);
    }
    found[index] = a + b + (c + d);
  }
  return found;
}

/** (phases, 2 * half): what the samples around a place between two of them count. ``cutoff``: relative to half the rate. */
function filters(phases: number, half: number, cutoff: number): Float32Array {
  const weights = new Float32Array(phases * 2 * half);
  for (let phase = 0, at = 0; phase < phases; phase++) {
    const start = at;
    let sum = 0;
    for (let tap = 0; tap < 2 * half; tap++, at++) {
      const distance = tap - half + 1 - phase / phases;
      const angle = Math.PI * cutoff * distance;
      const sinc = distance === 0 ? 1 : Math.sin(angle) / angle;
      const inside = Math.max(0, 1 - (distance / half) ** 2);
      weights[at] = sinc * bessel(SHAPE * Math.sqrt(inside));
      sum += Number(weights[at]);
    }
    // A constant remains as it is.
    for (let tap = start; tap < at; tap++) weights[tap] = Number(weights[tap]) / sum;
  }
  return weights;
}

/** The modified Bessel function of the first kind and order zero. */
function bessel(x: number): number {
  let [sum, term] = [1, 1];
  for (let index = 1; term > 1e-12 * sum; index++) {
    term *= (x / (2 * index)) ** 2;
    sum += term;
  }
  return sum;
}

function greatestCommonDivisor(a: number, b: number): number {
  return b === 0 ? a : greatestCommonDivisor(b, a % b);
}

// Converts the rate of sound: a low-pass filter of a windowed sinc, evaluated between the samples (Smith, "Digital Audio
// Resampling", 1984). The phase is linear. A recording is converted piece by piece, to the same numbers.

/** The rate that models read, in Hz. */
export const SAMPLE_RATE = 16_000;
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
  const resampler = new Resampler(from, to);
  return joined([resampler.push(samples), resampler.end()]);
}

/** Blocks of samples, one after the other. */
export function joined(blocks: readonly Float32Array[]): Float32Array<ArrayBuffer> {
  const all = new Float32Array(blocks.reduce((sum, block) => sum + block.length, 0));
  let at = 0;
  for (const block of blocks) {
    all.set(block, at);
    at += block.length;
  }
  return all;
}

/** Converts sound piece by piece, which is `resample` of all of it. Rates are whole numbers in Hz. */
export class Resampler {
  readonly #up: number;
  readonly #down: number;
  /** In samples of the input; even, because four weights are multiplied at a time. */
  readonly #half: number;
  readonly #phases: number;
  readonly #weights: Float32Array;
  /** The input that later samples need, from the index ``#start`` on; silence precedes, so that it counts from there. */
  #pending: Float32Array<ArrayBuffer>;
  #start = 0;
  /** The samples that were read and those that were returned. */
  #read = 0;
  #returned = 0;

  constructor(from: number, to: number) {
    const divisor = greatestCommonDivisor(from, to);
    [this.#up, this.#down] = [to / divisor, from / divisor];
    this.#half = 2 * Math.ceil((ZEROS / 2) * Math.max(1, from / to));
    this.#phases = Math.min(this.#up, Math.floor(MOST_WEIGHTS / (2 * this.#half)));
    this.#weights = filters(this.#phases, this.#half, CUTOFF * Math.min(1, to / from));
    // Sample ``place - half + 1`` of the input is at ``place``.
    this.#pending = new Float32Array(this.#half - 1);
  }

  /** The samples that are known after these. */
  push(samples: Float32Array): Float32Array<ArrayBuffer> {
    this.#read += samples.length;
    this.#append(samples);
    // A sample that lies between two reads one more.
    const places = this.#start + this.#pending.length - 2 * this.#half;
    return this.#until(Math.max(this.#returned, Math.floor((places * this.#up) / this.#down)));
  }

  /** The last samples, which silence follows. */
  end(): Float32Array<ArrayBuffer> {
    this.#append(new Float32Array(this.#half + 1));
    return this.#until(Math.ceil((this.#read * this.#up) / this.#down));
  }

  #append(samples: Float32Array): void {
    const longer = new Float32Array(this.#pending.length + samples.length);
    longer.set(this.#pending);
    longer.set(samples, this.#pending.length);
    this.#pending = longer;
  }

  #until(stop: number): Float32Array<ArrayBuffer> {
    const found = new Float32Array(stop - this.#returned);
    const [taps, weights, pending] = [2 * this.#half, this.#weights, this.#pending];
    for (let index = 0; index < found.length; index++) {
      // The place in the input: a sample, and a part of the way to the next one.
      const place = (this.#returned + index) * this.#down;
      let sample = Math.floor(place / this.#up);
      let phase = Math.round(((place - sample * this.#up) * this.#phases) / this.#up);
      if (phase === this.#phases) [sample, phase] = [sample + 1, 0];
      const first = sample - this.#start;
      // Sums that do not wait for each other are computed at the same time.
      let [a, b, c, d] = [0, 0, 0, 0];
      for (let tap = 0, at = phase * taps; tap < taps; tap += 4, at += 4) {
        a += Number(weights[at]) * Number(pending[first + tap]);
        b += Number(weights[at + 1]) * Number(pending[first + tap + 1]);
        c += Number(weights[at + 2]) * Number(pending[first + tap + 2]);
        d += Number(weights[at + 3]) * Number(pending[first + tap + 3]);
      }
      found[index] = a + b + (c + d);
    }
    this.#returned = stop;
    const next = Math.min(Math.floor((stop * this.#down) / this.#up), this.#start + pending.length);
    this.#pending = pending.slice(next - this.#start);
    this.#start = next;
    return found;
  }
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

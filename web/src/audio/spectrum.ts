// The energies of a frame of sound by frequency: a Fourier transform of 400 or 512 points (Cooley and Tukey 1965) in
// float64.

/** The points of a frame. */
export const FRAME = 400;
/** The frequencies of its spectrum. */
export const FREQUENCIES = FRAME / 2 + 1;

/** By the points of a spectrum, which are their product: a stage joins as many transforms to one. */
const FACTORS: Readonly<Record<number, readonly number[]>> = { 400: [4, 4, 5, 5], 512: [4, 4, 4, 4, 2] };

/**
 * For each output of a stage, one after the other, its ``factor`` terms: the input that each reads, and the cosine and
 * sine of the root of unity by which it is multiplied.
 */
interface Stage {
  readonly factor: number;
  readonly inputs: Uint16Array;
  readonly cosines: Float64Array;
  readonly sines: Float64Array;
}

/** ``size``: the points of the transforms that the stage joins. Output (m, k) is frequency k of those from m on. */
function stageOf(points: number, factor: number, size: number): Stage {
  const joined = size * factor;
  const blocks = points / joined;
  const stage = {
    factor,
    inputs: new Uint16Array(points * factor),
    cosines: new Float64Array(points * factor),
    sines: new Float64Array(points * factor),
  };
  let next = 0;
  for (let block = 0; block < blocks; block++)
    for (let frequency = 0; frequency < joined; frequency++)
      for (let term = 0; term < factor; term++, next++) {
        const angle = (-2 * Math.PI * ((term * frequency) % joined)) / joined;
        stage.inputs[next] = (block + term * blocks) * size + (frequency % size);
        stage.cosines[next] = Math.cos(angle);
        stage.sines[next] = Math.sin(angle);
      }
  return stage;
}

/** A plan with its tables and its memory, for any number of frames. */
export class Spectrum {
  readonly #stages: readonly Stage[];
  #real: Float64Array;
  #imaginary: Float64Array;
  #nextReal: Float64Array;
  #nextImaginary: Float64Array;

  constructor(private readonly points = FRAME) {
    [this.#real, this.#imaginary] = [new Float64Array(points), new Float64Array(points)];
    [this.#nextReal, this.#nextImaginary] = [new Float64Array(points), new Float64Array(points)];
    let size = 1;
    this.#stages = (FACTORS[points] ?? []).map((factor) => {
      const stage = stageOf(points, factor, size);
      size *= factor;
      return stage;
    });
  }

  /**
   * The squared magnitudes of two frames (points,) at once, which are the real and the imaginary part of one: ``ofFirst``
   * and ``ofSecond`` (points / 2 + 1,) receive them.
   */
  energies(first: Float64Array, second: Float64Array, ofFirst: Float64Array, ofSecond: Float64Array): void {
    this.#real.set(first);
    this.#imaginary.set(second);
    for (const stage of this.#stages) this.#run(stage);
    const [real, imaginary] = [this.#real, this.#imaginary];
    for (let index = 0; index <= this.points / 2; index++) {
      const mirrored = (this.points - index) % this.points;
      const x = Number(real[index]);
      const y = Number(imaginary[index]);
      const u = Number(real[mirrored]);
      const v = Number(imaginary[mirrored]);
      // The spectrum of real numbers is its own mirror image, conjugated; that of imaginary ones the negative of it.
      ofFirst[index] = ((x + u) ** 2 + (y - v) ** 2) / 4;
      ofSecond[index] = ((y + v) ** 2 + (u - x) ** 2) / 4;
    }
  }

  #run({ factor, inputs, cosines, sines }: Stage): void {
    const real = this.#real;
    const imaginary = this.#imaginary;
    const nextReal = this.#nextReal;
    const nextImaginary = this.#nextImaginary;
    for (let output = 0, next = 0; output < this.points; output++) {
      let sumReal = 0;
      let sumImaginary = 0;
      for (const end = next + factor; next < end; next++) {
        const input = Number(inputs[next]);
        const x = Number(real[input]);
        const y = Number(imaginary[input]);
        const cosine = Number(cosines[next]);
        const sine = Number(sines[next]);
        sumReal += x * cosine - y * sine;
        sumImaginary += x * sine + y * cosine;
      }
      nextReal[output] = sumReal;
      nextImaginary[output] = sumImaginary;
    }
    [this.#real, this.#nextReal] = [nextReal, real];
    [this.#imaginary, this.#nextImaginary] = [nextImaginary, imaginary];
  }
}

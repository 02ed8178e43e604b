// Computes SHA-256 piece by piece (FIPS 180-4), for platforms without crypto.subtle.

const ROUNDS = 64;
const BLOCK = 64;

/** The constants of SHA-256: fractional bits of roots of the first primes. */
function constants(): { readonly initial: Int32Array; readonly rounds: Int32Array } {
  const primes: number[] = [];
  for (let number = 2; primes.length < ROUNDS; number++)
    if (primes.every((prime) => number % prime !== 0)) primes.push(number);
  const bits = (root: number): number => ((root - Math.floor(root)) * 2 ** 32) | 0;
  return {
    initial: Int32Array.from(primes.slice(0, 8), (prime) => bits(Math.sqrt(prime))),
    rounds: Int32Array.from(primes, (prime) => bits(Math.cbrt(prime))),
  };
}

export class Sha256 {
  readonly #state: Int32Array;
  readonly #rounds: Int32Array;
  readonly #words = new Int32Array(ROUNDS);
  readonly #rest = new Uint8Array(BLOCK);
  #length = 0;

  constructor() {
    const { initial, rounds } = constants();
    this.#state = initial;
    this.#rounds = rounds;
  }

  update(bytes: Uint8Array): void {
    let offset = 0;
    const pending = this.#length % BLOCK;
    this.#length += bytes.length;
    if (pending > 0) {
      const first = bytes.subarray(0, BLOCK - pending);
      this.#rest.set(first, pending);
      offset = first.length;
      if (pending + offset < BLOCK) return;
      this.block(this.#rest, 0);
    }
    for (; offset + BLOCK <= bytes.length; offset += BLOCK) this.block(bytes, offset);
    this.#rest.set(bytes.subarray(offset));
  }

  /** The hash in hexadecimal. `update` must not be called after it. */
  digest(): string {
    const bits = this.#length * 8;
    const pending = this.#length % BLOCK;
    const end = new Uint8Array(pending < 56 ? BLOCK - pending : 2 * BLOCK - pending);
    end[0] = 0x80;
    const view = new DataView(end.buffer);
    view.setUint32(end.length - 8, Math.floor(bits / 2 ** 32));
    view.setUint32(end.length - 4, bits >>> 0);
    this.update(end);
    return Array.from(this.#state, (word) => (word >>> 0).toString(16).padStart(8, "0")).join("");
  }

  private block(bytes: Uint8Array, offset: number): void {
    const words = this.#words;
    const at = (index: number): number => words[index] ?? 0;
    for (let index = 0; index < 16; index++) {
      const start = offset + 4 * index;
      words[index] =
        ((bytes[start] ?? 0) << 24) |
        ((bytes[start + 1] ?? 0) << 16) |
        ((bytes[start + 2] ?? 0) << 8) |
        (bytes[start + 3] ?? 0);
    }
    for (let index = 16; index < ROUNDS; index++) {
      const [first, last] = [at(index - 15), at(index - 2)];
      const small = rotate(first, 7) ^ rotate(first, 18) ^ (first >>> 3);
      const large = rotate(last, 17) ^ rotate(last, 19) ^ (last >>> 10);
      words[index] = (at(index - 16) + small + at(index - 7) + large) | 0;
    }
    let [a = 0, b = 0, c = 0, d = 0, e = 0, f = 0, g = 0, h = 0] = this.#state;
    for (let index = 0; index < ROUNDS; index++) {
      const one =
        (h +
          (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) +
          ((e & f) ^ (~e & g)) +
          (this.#rounds[index] ?? 0) +
          at(index)) |
        0;
      const two = ((rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      [h, g, f, e, d, c, b, a] = [g, f, e, (d + one) | 0, c, b, a, (one + two) | 0];
    }
    [a, b, c, d, e, f, g, h].forEach((value, index) => (this.#state[index] = ((this.#state[index] ?? 0) + value) | 0));
  }
}

function rotate(word: number, bits: number): number {
  return (word >>> bits) | (word << (32 - bits));
}

// The number of steps to submit before the first of them is read. One is enough if a step takes long; a fast device
// would be idle while the host reads a result and submits the next step.

// Results between two checks of the depth.
const PERIOD = 6;
// A deeper queue must reduce the time per step at least to this factor, because every step after a stop token is
// wasted.
const GAIN = 0.97;
// A step that takes this long hides every round trip to the host, in milliseconds.
const SLOW = 60;

export class Lookahead {
  #depth = 1;
  #best = Infinity;
  #settled = false;
  #count = 0;
  #since = 0;

  /** ``most``: the maximum number of steps at once. */
  constructor(private readonly most: number) {}

  /** How many steps may be open at once. */
  get depth(): number {
    return this.#depth;
  }

  /** The device was idle: measure again, and queue nothing after the first token. */
  restart(now: number): void {
    this.#count = 0;
    this.#since = now;
    if (!this.#settled) {
      this.#depth = 1;
      this.#best = Infinity;
    }
  }

  /** A step's tokens have been read. ``now`` in milliseconds. */
  read(now: number): void {
    this.#count++;
    if (this.#depth === 1) this.#depth = Math.min(2, this.most);
    if (this.#settled || this.#count < PERIOD) return;
    const time = (now - this.#since) / this.#count;
    this.#count = 0;
    this.#since = now;
    if (time > SLOW) {
      this.#settled = true;
    } else if (time < this.#best * GAIN && this.#depth < this.most) {
      this.#best = time;
      this.#depth++;
    } else {
      this.#depth = Math.min(Math.max(2, this.#depth - 1), this.most);
      this.#settled = true;
    }
  }
}

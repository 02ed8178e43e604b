// How many steps to hand to the device before the first of them is read. One is enough where a step takes long; on a fast device the way to the host
// and back would leave it idle. Times of results flow in; a depth flows out.

// Results between two looks at whether the depth helps.
const PERIOD = 6;
// What a deeper queue must gain: every step beyond a stop token is for nothing.
const GAIN = 0.97;
// A step that takes this long hides any way to the host, in milliseconds.
const SLOW = 60;

export class Lookahead {
  #depth = 1;
  #best = Infinity;
  #settled = false;
  #count = 0;
  #since = 0;

  /** ``most`` steps at once. */
  constructor(private readonly most: number) {}

  /** Steps that may be on their way at once. */
  get depth(): number {
    return this.#depth;
  }

  /** The device was idle: whatever comes next starts anew, its first token with nothing queued behind it. */
  restart(now: number): void {
    this.#count = 0;
    this.#since = now;
    if (!this.#settled) {
      this.#depth = 1;
      this.#best = Infinity;
    }
  }

  /** A step's tokens are read. ``now`` in milliseconds. */
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

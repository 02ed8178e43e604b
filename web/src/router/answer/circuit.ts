// Circuit: whether a side may get requests. A side that fails gets none for a while, then a single trial request.
//
// closed  --failures-->  open  --after a wait-->  half-open  --one request succeeds-->  closed
//                         ^                            |
//                         +-------- it fails ----------+

import type { CircuitState } from "../../shared/decision/situation.js";

export class Circuit {
  #failures = 0;
  #openUntil: number | null = null;
  #trying = false;

  /** ``failures`` in a row open it for ``waitMs`` of the clock. */
  constructor(
    private readonly failures: number,
    private readonly waitMs: number,
    private readonly now: () => number,
  ) {}

  get state(): CircuitState {
    if (this.#openUntil === null) return "closed";
    return this.now() < this.#openUntil ? "open" : "half-open";
  }

  /** Whether a request may be sent now. */
  get admits(): boolean {
    return this.state === "closed" || (this.state === "half-open" && !this.#trying);
  }

  /** A request is sent. While the circuit is half-open, it is the trial, until `ended`. */
  begin(): void {
    this.#trying ||= this.state === "half-open";
  }

  succeeded(): void {
    this.#failures = 0;
    this.#openUntil = null;
    this.#trying = false;
  }

  failed(): void {
    this.#failures++;
    if (this.#openUntil === null && this.#failures < this.failures) return;
    // Requests that were running when the circuit opened fail late; they show nothing new.
    if (this.state === "open") return;
    this.#openUntil = this.now() + this.waitMs;
    this.#trying = false;
  }

  /** The request is over, whatever its outcome. The next one may be the trial, if one is still needed. */
  ended(): void {
    this.#trying = false;
  }
}

// Circuit: whether a side may get requests. A side that fails gets none for a while, then a single trial request.
//
// closed  --failures-->  open  --after a wait-->  half-open  --one request succeeds-->  closed
//                         ^                            |
//                         +------ it fails, and the wait doubles

/** This number of failures in a row opens the circuit. A single one may be a kept connection that went stale. */
export const FAILURES_TO_OPEN = 3;
export const FIRST_WAIT_MS = 1_000;
export const LONGEST_WAIT_MS = 30_000;

export type CircuitState = "closed" | "open" | "half-open";

export interface CircuitOptions {
  /** The number of failures in a row that opens the circuit. */
  readonly failures?: number | undefined;
  readonly firstWaitMs?: number | undefined;
  /** The wait doubles up to this, but is never below firstWaitMs. */
  readonly longestWaitMs?: number | undefined;
  /** In milliseconds. */
  readonly clock?: (() => number) | undefined;
}

export class Circuit {
  readonly #failuresToOpen: number;
  readonly #firstWaitMs: number;
  readonly #longestWaitMs: number;
  readonly #clock: () => number;
  #failures = 0;
  #waitMs: number;
  #openUntil: number | null = null;
  #trying = false;

  constructor({
    failures = FAILURES_TO_OPEN,
    firstWaitMs = FIRST_WAIT_MS,
    longestWaitMs = LONGEST_WAIT_MS,
    clock = () => performance.now(),
  }: CircuitOptions = {}) {
    this.#failuresToOpen = failures;
    this.#firstWaitMs = this.#waitMs = firstWaitMs;
    this.#longestWaitMs = Math.max(firstWaitMs, longestWaitMs);
    this.#clock = clock;
  }

  get state(): CircuitState {
    if (this.#openUntil === null) return "closed";
    return this.#clock() < this.#openUntil ? "open" : "half-open";
  }

  /** Whether a request may be sent now. */
  get admits(): boolean {
    return this.state === "closed" || (this.state === "half-open" && !this.#trying);
  }

  get msUntilTrial(): number {
    return this.#openUntil === null ? 0 : Math.max(0, this.#openUntil - this.#clock());
  }

  /** A request is sent. While the circuit is half-open, it is the trial, until `ended`. */
  begin(): void {
    this.#trying ||= this.state === "half-open";
  }

  succeeded(): void {
    this.#failures = 0;
    this.#waitMs = this.#firstWaitMs;
    this.#openUntil = null;
    this.#trying = false;
  }

  /** certain: no server is there, so one failure is enough. */
  failed({ certain = false }: { readonly certain?: boolean } = {}): void {
    this.#failures++;
    const wasClosed = this.#openUntil === null;
    if (wasClosed && !certain && this.#failures < this.#failuresToOpen) return;
    // Requests that were running when the circuit opened fail late; they show nothing new.
    if (this.state === "open") return;
    if (!wasClosed) this.#waitMs = Math.min(2 * this.#waitMs, this.#longestWaitMs);
    this.#openUntil = this.#clock() + this.#waitMs;
    this.#trying = false;
  }

  /** The request is over, whatever its outcome. The next one may be the trial, if one is still needed. */
  ended(): void {
    this.#trying = false;
  }
}

// A side's record, learnt from its answers: its health, its speed, and the likely contents of its cache.

import { PrefixMemory } from "../../shared/decision/prefix_memory.js";
import type { Part } from "./running_answer.js";
import type { CircuitState, NearState } from "../../shared/decision/situation.js";
import type { Speed } from "../../shared/decision/speed.js";
import { UNKNOWN_SPEED, speedAfter } from "../../shared/decision/speed.js";

export class SideRecord {
  readonly memory = new PrefixMemory();
  #speed: Speed;

  /** ``expected``: the speed before the first answer. */
  constructor(
    readonly circuit: Circuit,
    expected: Partial<Speed> = {},
  ) {
    this.#speed = { ...UNKNOWN_SPEED, ...expected };
  }

  get speed(): Speed {
    return this.#speed;
  }

  /** The state for a situation: "half-open" for the one trial request, meanwhile "open" for all others. */
  get circuitState(): CircuitState {
    return this.circuit.admits ? this.circuit.state : "open";
  }

  /** Records a part of an answer that ended well. */
  learn({ requestedAt, firstAt, lastAt, tokens, usage }: Part, roundTripSeconds: number | null): void {
    if (firstAt === null || lastAt === null) return;
    this.#speed = speedAfter(this.#speed, {
      usage,
      tokens,
      first_token_seconds: (firstAt - requestedAt) / 1000,
      total_seconds: (lastAt - requestedAt) / 1000,
      round_trip_seconds: roundTripSeconds,
    });
  }
}

/** The speeds in the form of a situation. */
export function rates({
  prefill_tokens_per_second,
  decode_tokens_per_second,
}: Speed): Pick<NearState, "prefill_tokens_per_second" | "decode_tokens_per_second"> {
  return { prefill_tokens_per_second, decode_tokens_per_second };
}

// Circuit: whether a side may get requests. A side that fails gets none for a while, then a single trial request.
//
// closed  --failures-->  open  --after a wait-->  half-open  --one request succeeds-->  closed
//                         ^                            |
//                         +-------- it fails ----------+

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

  /** ``certain``: nothing listens at the address, so one failure is enough. */
  failed(certain = false): void {
    this.#failures++;
    if (this.#openUntil === null && !certain && this.#failures < this.failures) return;
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

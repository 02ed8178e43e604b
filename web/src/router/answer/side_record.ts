// What was seen of a side over its answers: whether it is well, how fast it is, and what it has likely kept of them. Parts of answers flow in; a situation is told of it.

import type { Circuit } from "./circuit.js";
import { PrefixMemory } from "../decision/prefix_memory.js";
import type { Part } from "./running_answer.js";
import type { CircuitState, NearState } from "../decision/situation.js";
import type { Speed } from "../decision/speed.js";
import { UNKNOWN_SPEED, speedAfter } from "../decision/speed.js";

export class SideRecord {
  readonly memory = new PrefixMemory();
  #speed: Speed = UNKNOWN_SPEED;

  constructor(readonly circuit: Circuit) {}

  get speed(): Speed {
    return this.#speed;
  }

  /** For a situation: "half-open" for the one request that is let through, "open" for those beside it. */
  get circuitState(): CircuitState {
    return this.circuit.admits ? this.circuit.state : "open";
  }

  /** A part of an answer that ended well. What it waited in a queue says nothing of the side's speed, and is told by itself. */
  learn({ askedAt, firstAt, lastAt, tokens, usage }: Part, roundTripSeconds: number | null): void {
    if (firstAt === null || lastAt === null || usage === null) return;
    const startedAt = askedAt + Math.max(0, usage.queue_ms ?? 0);
    this.#speed = speedAfter(this.#speed, {
      computed_tokens: Math.max(0, usage.prompt_tokens - (usage.prompt_tokens_details?.cached_tokens ?? 0)),
      completion_tokens: Math.max(tokens, usage.completion_tokens),
      first_token_seconds: Math.max(0, firstAt - startedAt) / 1000,
      total_seconds: Math.max(0, lastAt - startedAt) / 1000,
      round_trip_seconds: roundTripSeconds,
    });
  }
}

/** The speeds, as a situation has them. */
export function rates({
  prefill_tokens_per_second,
  decode_tokens_per_second,
}: Speed): Pick<NearState, "prefill_tokens_per_second" | "decode_tokens_per_second"> {
  return { prefill_tokens_per_second, decode_tokens_per_second };
}

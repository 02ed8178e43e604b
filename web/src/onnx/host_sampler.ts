// The host sampler: stores the states of each sequence slot and samples tokens with them, for runtimes whose graphs end
// at the logits.

import { RequestError } from "../errors.js";
import type { Batch } from "../runtime/batch.js";
import { SAMPLE_FLAGS } from "../runtime/batch.js";
import { logprobsOf } from "../runtime/log_sum_exp.js";
import type { ResultOptions, StepResult } from "../runtime/results.js";
import type { SlotStates } from "./choose_token.js";
import { adjustLogits, chooseToken, settingsAt } from "./choose_token.js";
import { largest } from "./largest.js";

/** The number of most likely tokens that are listed, or fewer if the vocabulary is smaller. */
const ALTERNATIVES = 20;

export class HostSampler {
  readonly #sampled: Int32Array;
  readonly #states: readonly SlotStates[];

  constructor(
    private readonly vocabSize: number,
    slots: number,
  ) {
    this.#sampled = new Int32Array(slots);
    this.#states = Array.from({ length: slots }, () => ({ counts: null, bias: null, mask: null }));
  }

  /** Replace one of the states of a slot. Throws RequestError for an unknown slot, or values of another length. */
  set<Name extends keyof SlotStates>(slot: number, name: Name, values: SlotStates[Name]): void {
    const length = name === "mask" ? Math.ceil(this.vocabSize / 32) : this.vocabSize;
    if (values !== null && values.length !== length) {
      throw new RequestError(`${name}: ${values.length} values do not fit a slot of ${length}`, {
        found: values.length,
        expected: length,
      });
    }
    this.#slot(slot)[name] = values;
  }

  /** Resolve a token id of a batch: ids below 0 stand for the token that was last sampled in a slot. */
  tokenId(id: number): number {
    return id < 0 ? (this.#sampled[-1 - id] ?? 0) : id;
  }

  /** The next token of each sampled row from its logits (V,); -1 if one of them is not a number. */
  choose(
    batch: Batch,
    logits: readonly Float32Array[],
    { logprobs = false, alternatives = false, onLogits }: ResultOptions,
  ): StepResult {
    logits.forEach((row, index) => onLogits?.(row, index));
    const columns = Math.min(ALTERNATIVES, this.vocabSize);
    const tokenIds = Int32Array.from(logits, (row, index) => this.#chooseRow(batch, row, index));
    const logprobsOfRows = logprobs || alternatives ? logits.map(logprobsOf) : [];
    const ids = new Int32Array(alternatives ? columns * logits.length : 0);
    if (alternatives)
      logits.forEach((row, index) => {
        ids.set(largest(row, columns), index * columns);
      });
    const logprobOf = (row: number, id: number): number => logprobsOfRows[row]?.(id) ?? NaN;
    return {
      tokenIds,
      logprobs: logprobs ? Float32Array.from(tokenIds, (id, row) => logprobOf(row, id)) : null,
      alternatives: alternatives
        ? { ids, logprobs: Float32Array.from(ids, (id, index) => logprobOf(Math.floor(index / columns), id)) }
        : null,
    };
  }

  #chooseRow(batch: Batch, logits: Float32Array, row: number): number {
    const [slot = -1, flags = 0] = batch.sample_slots.slice(2 * row, 2 * row + 2);
    const settings = settingsAt(batch.sample_settings, row);
    const states = slot < 0 ? { counts: null, bias: null, mask: null } : this.#slot(slot);
    const token = chooseToken(adjustLogits(logits, settings, flags, states), settings);
    if (slot < 0 || token < 0) return token;
    this.#sampled[slot] = token;
    if ((flags & SAMPLE_FLAGS.counts) !== 0 && states.counts !== null)
      states.counts[token] = (states.counts[token] ?? 0) + 1;
    return token;
  }

  #slot(slot: number): SlotStates {
    const states = this.#states[slot];
    if (states === undefined)
      throw new RequestError(
        `batch: slot ${slot} is not one of 0 to ${this.#states.length - 1}; give each sequence one of them`,
        { slot },
      );
    return states;
  }
}

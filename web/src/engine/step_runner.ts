// What the engine needs of a device: a runner of steps. The runtime's Runner is one; tests have another.

import type { Batch } from "../runtime/batch.js";

/** The most log-probabilities of other tokens that a row gives. */
export const ALTERNATIVES = 20;

/** Flags of a sampled row: what of its slot's state the sampler minds. */
export const TOKEN_COUNTS = 1;
export const LOGIT_BIAS = 2;
export const TOKEN_MASK = 4;

/**
 * sample_slots (R, 2): the slot that keeps a row's token, and the flags. sample_settings (R, 8): temperature, top k, top p, min p, the draw, repetition,
 * frequency and presence penalty. A negative token id stands for the token last sampled in slot -1 - id.
 */
export interface StepBatch extends Batch {
  readonly sample_slots: readonly number[];
  readonly sample_settings: readonly number[];
}

/** How large a step may be: ``tokens`` new ones, of ``sequences`` at once, in ``pages`` of ``pageSize`` tokens; ``context`` of one sequence. */
export interface RunnerLimits {
  readonly tokens: number;
  readonly sequences: number;
  readonly pages: number;
  readonly pageSize: number;
  readonly context: number;
}

export interface StepWanted {
  readonly logprobs: boolean;
  readonly alternatives: boolean;
}

/** Of each sampled row, (R,). ``alternatives``: the likeliest tokens, best first, (R, ALTERNATIVES). */
export interface StepResult {
  readonly tokenIds: Int32Array;
  readonly logprobs: Float32Array | null;
  readonly alternatives: { readonly ids: Int32Array; readonly logprobs: Float32Array } | null;
}

/** Everything happens on the device in the order of the calls. */
export interface StepRunner {
  readonly limits: RunnerLimits;
  /** The step is on its way when this returns, and done when the promise resolves. Throws DeviceError. */
  submit(batch: StepBatch, wanted: StepWanted): Promise<StepResult>;
  /** (V,): in the low 16 bits how often a token is in the slot's answer; bit 16: whether it is in the prompt. */
  setTokenCounts(slot: number, counts: Int32Array<ArrayBuffer>): void;
  /** (V,): added to the slot's logits. */
  setLogitBias(slot: number, bias: Float32Array<ArrayBuffer>): void;
  /** (ceil(V / 32),): the tokens that may come next, a bit each. */
  setTokenMask(slot: number, mask: Int32Array<ArrayBuffer>): void;
  /** Copy whole pages of all layers, in order. */
  copyPages(pairs: readonly (readonly [from: number, to: number])[]): void;
  /** The keys and values in pages, of all layers. */
  readPages(pages: readonly number[]): Promise<Uint8Array<ArrayBuffer>>;
  writePages(pages: readonly number[], bytes: Uint8Array<ArrayBuffer>): void;
}

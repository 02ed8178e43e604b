// The engine's constraint for a grammar: it accepts tokens and computes masks of the tokens that are allowed next.

import type { Constraint } from "../engine/request.js";
import { RequestError } from "../errors.js";
import type { GrammarMatcher } from "./wasm.js";

/** ``complete``: the answer so far is a complete text of the grammar. */
export type GrammarConstraint = Constraint;

export class MatcherConstraint implements Constraint {
  #mask: Int32Array<ArrayBuffer> | null = null;

  constructor(readonly matcher: GrammarMatcher) {}

  /** Throws RequestError if no token of the vocabulary continues the text. */
  mask(): Int32Array<ArrayBuffer> {
    const mask = this.next();
    if (mask.every((word) => word === 0))
      throw new RequestError("No token of this model's vocabulary continues the answer; give another grammar");
    return mask;
  }

  /** Throws RequestError for a token that the mask does not allow. */
  accept(tokenId: number): void {
    if (!this.matcher.acceptToken(tokenId)) {
      throw new RequestError(`Token ${tokenId} does not continue the grammar; choose one that mask() allows`, {
        tokenId,
      });
    }
    this.#mask = null;
  }

  get complete(): boolean {
    return this.matcher.complete();
  }

  get finished(): boolean {
    if (!this.complete) return false;
    const rest = this.next().slice();
    for (const id of this.matcher.vocabulary.eosTokenIds) clearBit(rest, id);
    return rest.every((word) => word === 0);
  }

  dispose(): void {
    this.matcher.dispose();
  }

  /** The tokens that are allowed next; none if the text is complete and the model has no token that ends it. */
  private next(): Int32Array<ArrayBuffer> {
    this.#mask ??= this.matcher.mask();
    return this.#mask;
  }
}

export function hasBit(mask: Int32Array, id: number): boolean {
  return (((mask[id >> 5] ?? 0) >>> (id & 31)) & 1) === 1;
}

export function setBit(mask: Int32Array, id: number): void {
  mask[id >> 5] = (mask[id >> 5] ?? 0) | (1 << (id & 31));
}

function clearBit(mask: Int32Array, id: number): void {
  mask[id >> 5] = (mask[id >> 5] ?? 0) & ~(1 << (id & 31));
}

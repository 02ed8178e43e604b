// A grammar's answer that is whole within a number of tokens. While many tokens are left, the grammar alone decides what may come next. When few are,
// only those tokens may that leave enough for a completion, down to the completion itself.
//
// How few: `reserve` is at least how many tokens one token can add to the shortest completion. A grammar's literals, each once, are more than any choice
// in it can newly demand.

import { RequestError } from "../errors.js";
import type { Completion, Shortener } from "./completion.js";
import { completes, findCompletion, pendingBytes } from "./completion.js";
import type { GrammarConstraint, MatcherConstraint } from "./constraint.js";
import { hasBit, setBit } from "./constraint.js";

// At most this many tokens are tried one by one each time, the shortest ones first; each costs up to TRIALS characters.
const MOST_TRIED = 24;
const TRIALS = 600;
// Where a completion has to be found anew, which is rare.
const TRIALS_AGAIN = 4000;
// Characters of many kinds: where a matcher takes them all and is as before, any text without escapes leaves it so.
const PROBE =
  "az AZ 09 ,;.:-_+*/=<>(){}[]#%&!?'~^`|@$ \u00e9\u00df\u03a9\u0416\u05d0\u0905\u4e2d\u3042\uac00\u20ac\u{1f600}".repeat(
    2,
  );

export interface Bound {
  readonly maxTokens: number;
  /** At least how many tokens one token can add to the shortest completion. */
  readonly reserve: number;
  /** Texts that may complete an answer. */
  readonly endings: readonly string[];
}

/** What the vocabulary's tokens look like, once for all constraints. */
export interface TokenShapes {
  /** One bit for each token of whole characters without quotes, backslashes and controls. */
  readonly plain: Int32Array;
  /** The ids of tokens with bytes, the shortest first. */
  readonly shortestFirst: readonly number[];
}

export class BoundedConstraint implements GrammarConstraint {
  readonly #inner: MatcherConstraint;
  #left: number;
  /** Null where none was found. */
  #completion: Completion | null;
  /** How many bytes the last character lacks. */
  #pending = 0;
  #mask: Int32Array<ArrayBuffer> | null = null;

  /** Throws RequestError where the shortest completion found is longer than maxTokens. */
  constructor(
    inner: MatcherConstraint,
    private readonly bound: Bound,
    private readonly shortener: Shortener,
    private readonly shapes: TokenShapes,
  ) {
    this.#inner = inner;
    const { maxTokens, endings } = bound;
    this.#left = maxTokens;
    this.#completion = findCompletion(inner.matcher, 0, endings);
    const { needed } = this;
    if (needed !== undefined && needed > maxTokens) {
      throw new RequestError(
        `The shortest answer found that the grammar allows has ${needed} tokens, more than maxTokens, ${maxTokens}; raise it`,
        {
          needed,
          maxTokens,
        },
      );
    }
  }

  mask(): Int32Array<ArrayBuffer> {
    return (this.#mask ??= this.allowed());
  }

  accept(tokenId: number): void {
    this.#inner.accept(tokenId);
    this.#left--;
    this.#mask = null;
    this.#pending = this.pendingAfter(tokenId);
    this.#completion = this.completionAfter(tokenId, this.#pending, TRIALS_AGAIN);
  }

  /** Of the shortest completion found. */
  get needed(): number | undefined {
    return this.tokensOf(this.#completion)?.length;
  }

  spend(tokens: number): void {
    this.#left -= tokens;
    this.#mask = null;
  }

  get complete(): boolean {
    return this.#inner.complete;
  }

  get finished(): boolean {
    return this.#inner.finished;
  }

  dispose(): void {
    this.#inner.dispose();
  }

  private allowed(): Int32Array<ArrayBuffer> {
    const all = this.#inner.mask();
    const completion = this.#completion;
    const tokens = this.tokensOf(completion);
    const afterwards = this.#left - 1;
    if (completion === null || tokens === null || afterwards >= tokens.length + this.bound.reserve) return all;
    const { matcher } = this.#inner;
    const few = new Int32Array(all.length);
    for (const id of matcher.vocabulary.eosTokenIds) if (hasBit(all, id)) setBit(few, id);
    const [next] = tokens;
    if (next !== undefined && afterwards >= 0) setBit(few, next);
    // A text that leaves the matcher as it is leaves the completion as it is.
    if (afterwards >= tokens.length && this.takesAnyText(all)) {
      this.shapes.plain.forEach((plain, word) => {
        few[word] = (few[word] ?? 0) | ((all[word] ?? 0) & plain);
      });
    }
    let tried = 0;
    for (const id of this.shapes.shortestFirst) {
      if (!hasBit(all, id) || hasBit(few, id)) continue;
      if (tried++ === MOST_TRIED) break;
      if (!matcher.acceptToken(id)) continue;
      const length = this.tokensOf(this.completionAfter(id, this.pendingAfter(id), TRIALS))?.length ?? Infinity;
      matcher.rollback(1);
      if (length <= afterwards) setBit(few, id);
    }
    return few;
  }

  /** A completion of the matcher's state, which ``tokenId`` led to from the one that the completion at hand is for. */
  private completionAfter(tokenId: number, pending: number, maxTrials: number): Completion | null {
    const { matcher } = this.#inner;
    let known = "";
    if (this.#completion !== null) {
      const { head, text } = this.#completion;
      if (head[0] === tokenId) return { head: head.slice(1), text };
      const bytes = matcher.vocabulary.tokens[tokenId] ?? new Uint8Array();
      known = pending === 0 ? text : afterCharacter(text, bytes, pending);
      const written = new TextDecoder().decode(bytes);
      // What a completion leaves out between its parts is space.
      for (const part of pending === 0 ? [written, written.replace(/[ \t\n]/g, "")] : []) {
        if (text.startsWith(part) && completes(matcher, text.slice(part.length)))
          return { head: [], text: text.slice(part.length) };
      }
    }
    return findCompletion(matcher, pending, this.bound.endings, maxTrials, known);
  }

  private pendingAfter(tokenId: number): number {
    return pendingBytes(this.#pending, this.#inner.matcher.vocabulary.tokens[tokenId] ?? new Uint8Array());
  }

  private takesAnyText(mask: Int32Array): boolean {
    const { matcher } = this.#inner;
    if (!matcher.acceptText(PROBE)) return false;
    const after = matcher.mask();
    matcher.rollback(1);
    return after.every((word, index) => word === mask[index]);
  }

  private tokensOf(completion: Completion | null): readonly number[] | null {
    const tail = completion === null ? null : this.shortener.tokens(completion.text);
    return completion === null || tail === null ? null : [...completion.head, ...tail];
  }
}

/** What of ``text`` is left after ``bytes`` and the ``pending`` bytes that end their last character, where it begins with these; else all of it. */
function afterCharacter(text: string, bytes: Uint8Array, pending: number): string {
  const all = new TextEncoder().encode(text);
  return bytes.every((byte, index) => byte === all[index])
    ? new TextDecoder().decode(all.subarray(bytes.length + pending))
    : text;
}

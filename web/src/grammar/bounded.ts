// A constraint whose answer is complete within a number of tokens. While many tokens remain, the grammar alone decides
// which tokens are allowed. When few remain, a token is allowed only if it leaves enough tokens for a completion.
//
// `reserve` sets this limit: it is an upper bound of the tokens that one token can add to the shortest completion. The
// sum of a grammar's literals is more than any choice in it can add.

import { RequestError } from "../errors.js";
import type { Ending, Shortener } from "./completion.js";
import { completes, findCompletion, pendingBytes } from "./completion.js";
import type { GrammarConstraint, MatcherConstraint } from "./constraint.js";
import { hasBit, setBit } from "./constraint.js";

// At most this number of tokens is tried one by one for a mask, the shortest first; each costs up to TRIALS characters.
const MOST_TRIED = 24;
const TRIALS = 600;
// For a completion that has to be searched again, which is rare.
const TRIALS_AGAIN = 4000;
// Characters of many kinds. If a matcher accepts them all without a change of state, it does so for any text without
// escapes.
const PROBE =
  "az AZ 09 ,;.:-_+*/=<>(){}[]#%&!?'~^`|@$ \u00e9\u00df\u03a9\u0416\u05d0\u0905\u4e2d\u3042\uac00\u20ac\u{1f600}".repeat(
    2,
  );

export interface Bound {
  readonly maxTokens: number;
  /** An upper bound of the tokens that one token can add to the shortest completion. */
  readonly reserve: number;
  /** Texts that may complete an answer. */
  readonly endings: readonly string[];
}

/** The vocabulary's tokens by kind, once for all constraints. */
export interface TokenShapes {
  /** One bit for each token of complete characters without quotes, backslashes and controls. */
  readonly plain: Int32Array;
  /** The ids of tokens with bytes, the shortest first. */
  readonly shortestFirst: readonly number[];
}

export class BoundedConstraint implements GrammarConstraint {
  readonly #inner: MatcherConstraint;
  #remaining: number;
  /** Null if none was found. */
  #completion: Ending | null;
  /** The number of bytes that the last character lacks. */
  #pending = 0;
  #mask: Int32Array<ArrayBuffer> | null = null;

  /** Throws RequestError if the shortest completion found is longer than maxTokens. */
  constructor(
    inner: MatcherConstraint,
    private readonly bound: Bound,
    private readonly shortener: Shortener,
    private readonly shapes: TokenShapes,
  ) {
    this.#inner = inner;
    const { maxTokens, endings } = bound;
    this.#remaining = maxTokens;
    this.#completion = findCompletion(inner.matcher, 0, endings);
    const { needed } = this;
    if (needed !== undefined && needed > maxTokens) {
      throw new RequestError(
        `The shortest answer found that the grammar allows has ${needed} tokens, more than maxTokens, ` +
          `${maxTokens}; raise it`,
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
    this.#remaining--;
    this.#mask = null;
    this.#pending = this.pendingAfter(tokenId);
    this.#completion = this.completionAfter(tokenId, this.#pending, TRIALS_AGAIN);
  }

  /** The number of tokens of the shortest completion found. */
  get needed(): number | undefined {
    return this.tokensOf(this.#completion)?.length;
  }

  spend(tokens: number): void {
    this.#remaining -= tokens;
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
    const afterwards = this.#remaining - 1;
    if (completion === null || tokens === null || afterwards >= tokens.length + this.bound.reserve) return all;
    const { matcher } = this.#inner;
    const few = new Int32Array(all.length);
    for (const id of matcher.vocabulary.eosTokenIds) if (hasBit(all, id)) setBit(few, id);
    const [next] = tokens;
    if (next !== undefined && afterwards >= 0) setBit(few, next);
    // A text that does not change the matcher does not change the completion.
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

  /** A completion after ``tokenId``, which the matcher has accepted. It may reuse the completion before the token. */
  private completionAfter(tokenId: number, pending: number, maxTrials: number): Ending | null {
    const { matcher } = this.#inner;
    let known = "";
    if (this.#completion !== null) {
      const { head, text } = this.#completion;
      if (head[0] === tokenId) return { head: head.slice(1), text };
      const bytes = matcher.vocabulary.tokens[tokenId] ?? new Uint8Array();
      known = pending === 0 ? text : afterCharacter(text, bytes, pending);
      const tokenText = new TextDecoder().decode(bytes);
      // A completion has no white space between its parts.
      for (const part of pending === 0 ? [tokenText, tokenText.replace(/[ \t\n]/g, "")] : []) {
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

  private tokensOf(completion: Ending | null): readonly number[] | null {
    const tail = completion === null ? null : this.shortener.tokens(completion.text);
    return completion === null || tail === null ? null : [...completion.head, ...tail];
  }
}

/** The rest of ``text`` after ``bytes`` and the end of their last character; all of it if it begins otherwise. */
function afterCharacter(text: string, bytes: Uint8Array, pending: number): string {
  const all = new TextEncoder().encode(text);
  return bytes.every((byte, index) => byte === all[index])
    ? new TextDecoder().decode(all.subarray(bytes.length + pending))
    : text;
}

// One request's answer in progress: the tokens that the engine has read and the caller has not.

import type { StepResult } from "../runtime/results.js";
import type { AnswerEnd, GeneratedToken, TokenRequest } from "./request.js";
import type { Sampling } from "./resolved_sampling.js";
import { resolveSampling } from "./resolved_sampling.js";
import type { Sequence } from "./sequence.js";

/**
 * A token with the log-probabilities that were requested. A token's value is the same as that of the alternative with
 * its id, though another kernel may have rounded it differently.
 */
export function generatedToken(
  { tokenIds, logprobs, alternatives: listed }: StepResult,
  sample: number,
  tokenId: number,
  numAlternatives: number | undefined,
): GeneratedToken {
  // A small vocabulary has fewer alternatives than can be requested.
  const columns = (listed?.ids.length ?? 0) / tokenIds.length;
  const alternatives = Array.from({ length: Math.min(numAlternatives ?? 0, columns) }, (_, index) => ({
    tokenId: listed?.ids[sample * columns + index] ?? -1,
    logprob: listed?.logprobs[sample * columns + index] ?? -Infinity,
  }));
  const own = alternatives.find((each) => each.tokenId === tokenId)?.logprob ?? logprobs?.[sample] ?? null;
  return { tokenId, logprob: numAlternatives === undefined ? null : own, alternatives };
}

/** The tokens of one request that the caller has not read yet. */
export class Answer {
  readonly sampling: Sampling;
  /** Whether its slot has a token mask for the step being submitted. */
  masked = false;
  /** All tokens of the answer so far. */
  readonly tokenIds: number[] = [];
  /** Complete before the first token. */
  readonly promptLogprobs: GeneratedToken[] = [];
  endToken: GeneratedToken | undefined = undefined;
  readonly #tokens: GeneratedToken[] = [];
  #ended = false;
  #error: unknown = null;
  #wake: () => void = () => undefined;

  constructor(
    readonly sequence: Sequence,
    readonly request: TokenRequest,
    vocabSize: number,
  ) {
    this.sampling = resolveSampling(request.sampling ?? {}, vocabSize);
  }

  push(token: GeneratedToken): void {
    this.tokenIds.push(token.tokenId);
    this.#tokens.push(token);
    this.#wake();
  }

  /** ``error`` is null if the answer is complete. */
  end(error: unknown): void {
    this.#error = error;
    this.#ended = true;
    this.#wake();
  }

  /** The next token, or null at the end. */
  async next(): Promise<GeneratedToken | null> {
    while (this.#tokens.length === 0 && !this.#ended) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
    if (this.#error !== null) throw this.#error as Error;
    return this.#tokens.shift() ?? null;
  }

  completion(): AnswerEnd {
    const { finishReason, cachedTokens, passes, drafted: draftedTokens, accepted: acceptedTokens } = this.sequence;
    return {
      finishReason: finishReason ?? "stop",
      promptTokens: this.request.promptIds.length,
      cachedTokens,
      completionTokens: this.tokenIds.length,
      passes,
      ...(draftedTokens > 0 && { draftedTokens, acceptedTokens }),
      ...(this.endToken && { endToken: this.endToken }),
    };
  }
}

// A near answer that begins before the decision, because its first tokens show how sure the model is. They are held; if
// near is chosen, they become the beginning of the answer, so nothing is computed twice.

import type { ChatCompletionChunk, PromptLogprobsOption } from "../../api/types.js";
import type { FirstToken, NearSignals } from "../../shared/decision/near_signals.js";
import { SIGNAL_TOKENS, nearSignals } from "../../shared/decision/near_signals.js";
import type { Side } from "../sides/sides.js";

/** The last tokens of the prompt: its end predicts most of what follows. */
const PROMPT_TOKENS = 32;

export class HeldAnswer {
  readonly #chunks: ChatCompletionChunk[] = [];
  readonly #iterator: AsyncIterator<ChatCompletionChunk, void, undefined>;
  readonly #tokens: FirstToken[] = [];
  #promptLogprobs: readonly number[] = [];
  #failure: { readonly error: unknown } | null = null;
  /** Resolves to true once the first tokens are there, or the answer has ended or failed. */
  readonly begun: Promise<true>;

  /**
   * The chunks that ``ask`` returns must end when ``controller`` aborts. It may use its argument to request the
   * prompt's log-probabilities.
   */
  constructor(
    ask: (promptLogprobs: PromptLogprobsOption) => AsyncGenerator<ChatCompletionChunk, void, undefined>,
    private readonly controller: AbortController,
  ) {
    const onLogprobs = (logprobs: readonly number[]): void => {
      this.#promptLogprobs = logprobs;
    };
    this.#iterator = ask({ tokens: PROMPT_TOKENS, onLogprobs })[Symbol.asyncIterator]();
    this.begun = this.#readFirst();
  }

  /** Of the tokens so far; null if there is none. */
  get signals(): NearSignals | null {
    return this.#tokens.length === 0 ? null : nearSignals(this.#tokens, this.#promptLogprobs);
  }

  /** The error that ended the answer, if one did. */
  get failure(): { readonly error: unknown } | null {
    return this.#failure;
  }

  /** ``near``, whose first request from the start gets this answer. */
  over(near: Side): Side {
    let isUsed = false;
    return {
      answer: (request) => {
        if (isUsed || request.from !== null) return near.answer(request);
        isUsed = true;
        return this.chunks(request.signal);
      },
    };
  }

  /** The complete answer; to be read once. */
  async *chunks(signal: AbortSignal): AsyncGenerator<ChatCompletionChunk, void, undefined> {
    const stop = (): void => {
      this.controller.abort(signal.reason);
    };
    signal.addEventListener("abort", stop);
    try {
      signal.throwIfAborted();
      await this.begun;
      yield* this.#chunks;
      if (this.#failure !== null) throw this.#failure.error;
      for (;;) {
        const result = await this.#iterator.next();
        if (result.done === true) return;
        yield result.value;
      }
    } finally {
      signal.removeEventListener("abort", stop);
      this.drop();
    }
  }

  /** The answer is no longer needed. */
  drop(): void {
    this.controller.abort();
  }

  async #readFirst(): Promise<true> {
    try {
      while (this.#tokens.length < SIGNAL_TOKENS) {
        const result = await this.#iterator.next();
        if (result.done === true) break;
        this.#chunks.push(result.value);
        for (const { logprob, top_logprobs: alternatives } of result.value.choices[0]?.logprobs?.content ?? [])
          this.#tokens.push({ logprob, alternatives: alternatives.map((other) => other.logprob) });
      }
    } catch (error) {
      this.#failure = { error };
    }
    return true;
  }
}

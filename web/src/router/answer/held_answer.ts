// A near answer that has begun before it is known whether near shall answer: its first tokens say how sure the model is. They are held, and are the
// answer's beginning where near answers, so that nothing is computed twice.

import type { ChatCompletionChunk, PromptLogprobsOption } from "../../api/types.js";
import type { NearSignals } from "../decision/situation.js";
import { entropy } from "./watch.js";

/** A sure model's first tokens tell as much as more of them, and the user waits for them. */
const TOKENS = 4;
/** Of the prompt: its end says most of what is to come. */
const PROMPT_TOKENS = 32;

export class HeldAnswer {
  readonly #chunks: ChatCompletionChunk[] = [];
  readonly #iterator: AsyncIterator<ChatCompletionChunk, void, undefined>;
  #failure: { readonly error: unknown } | null = null;
  #promptLogprobs: readonly number[] = [];
  /** Null where no token came. A failure is told to whoever reads the answer. */
  readonly signals: Promise<NearSignals | null>;

  /** The chunks that ``ask`` gives must end when ``controller`` aborts; it may ask for the prompt's log-probabilities by what it is given. */
  constructor(
    ask: (promptLogprobs: PromptLogprobsOption) => AsyncGenerator<ChatCompletionChunk, void, undefined>,
    private readonly controller: AbortController,
  ) {
    const tell = (logprobs: readonly number[]): void => {
      this.#promptLogprobs = logprobs;
    };
    this.#iterator = ask({ tokens: PROMPT_TOKENS, tell })[Symbol.asyncIterator]();
    this.signals = this.readFirst();
  }

  /** The whole answer, once. */
  async *chunks(signal: AbortSignal): AsyncGenerator<ChatCompletionChunk, void, undefined> {
    const stop = (): void => {
      this.controller.abort(signal.reason);
    };
    signal.addEventListener("abort", stop);
    try {
      signal.throwIfAborted();
      await this.signals;
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

  /** It is not wanted any more. */
  drop(): void {
    this.controller.abort();
  }

  private async readFirst(): Promise<NearSignals | null> {
    const logprobs: number[] = [];
    const entropies: number[] = [];
    try {
      while (logprobs.length < TOKENS) {
        const result = await this.#iterator.next();
        if (result.done === true) break;
        this.#chunks.push(result.value);
        for (const { logprob, top_logprobs: alternatives } of result.value.choices[0]?.logprobs?.content ?? []) {
          logprobs.push(logprob);
          entropies.push(entropy(alternatives.map((other) => other.logprob)));
        }
      }
    } catch (error) {
      this.#failure = { error };
    }
    if (logprobs.length === 0) return null;
    return {
      prompt_mean_logprob: this.#promptLogprobs.length === 0 ? null : mean(this.#promptLogprobs),
      first_entropy: mean(entropies.slice(0, TOKENS)),
      first_mean_logprob: mean(logprobs.slice(0, TOKENS)),
    };
  }
}

function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

// What an answer is asked for with, and what comes of it, in token ids. The API's texts and messages become these; the scheduler reads them.

/** How the next token is chosen. tests/conformance/sampling.json and compiler/ir/ops.py say what each means. */
export interface SamplingOptions {
  /** 0, the default, takes the likeliest token. */
  readonly temperature?: number | undefined;
  /** Only this many of the likeliest tokens; 0, the default, for all. */
  readonly topK?: number | undefined;
  /** Only the likeliest tokens whose probabilities reach this sum; 1, the default, for all. */
  readonly topP?: number | undefined;
  /** Only tokens at least this probable as against the likeliest; 0, the default, for all. */
  readonly minP?: number | undefined;
  /** Divides the positive and multiplies the negative logits of tokens seen in prompt or answer; 1, the default, for none. Keskar et al. 2019. */
  readonly repetitionPenalty?: number | undefined;
  /** Taken off a token's logit for each time that the answer has it; 0 by default. */
  readonly frequencyPenalty?: number | undefined;
  /** Taken off a token's logit once the answer has it; 0 by default. */
  readonly presencePenalty?: number | undefined;
  /** Added to the logits of these tokens. */
  readonly logitBias?: ReadonlyMap<number, number> | undefined;
  /** A 32-bit unsigned integer; the same seed draws the same tokens. A random one where it is not given. */
  readonly seed?: number | undefined;
}

/** What may be said next: a grammar's state over one answer. It is used by one request only. */
export interface Constraint {
  /** One bit for each token id, ceil(V / 32) words, least significant bit first: whether it may come next. Null where all may. */
  mask(): Int32Array<ArrayBuffer> | null;
  /** The token that came. Stop tokens are not told. */
  accept(tokenId: number): void;
  /** Whether nothing but the end may come. */
  readonly finished: boolean;
  /** Frees what it holds outside of JavaScript. The engine calls it when the answer ends. */
  dispose(): void;
}

export interface TokenRequest {
  readonly promptIds: readonly number[];
  /** At most this many new tokens; as many as the context holds where it is not given. */
  readonly maxTokens?: number | undefined;
  readonly sampling?: SamplingOptions | undefined;
  /** Log-probabilities of the chosen tokens and of this many alternatives, 0 to 20; none where it is not given. */
  readonly logprobs?: number | undefined;
  /** Log-probabilities of so many last tokens of the prompt, 0 to 32; none where it is not given. The first token has none. */
  readonly promptLogprobs?: number | undefined;
  /**
   * Told these before the first token, in nats, in the prompt's order: of each token after all before it. A token that is none of the 20 likeliest counts
   * as one of equals that share what these leave, at least as -30. Not told by an engine that cannot.
   */
  readonly onPromptLogprobs?: ((logprobs: readonly number[]) => void) | undefined;
  /** Ends the answer like the model's own end tokens. */
  readonly stopTokenIds?: readonly number[] | undefined;
  readonly constraint?: Constraint | undefined;
  /** Higher goes first; 0 by default. */
  readonly priority?: number | undefined;
  /** What happens when the context is full: the answer ends (the default), or the oldest tokens after the first ``keep`` make way. */
  readonly whenFull?: "stop" | { readonly keep: number } | undefined;
  readonly signal?: AbortSignal | undefined;
}

export interface TokenLogprob {
  readonly tokenId: number;
  readonly logprob: number;
}

export interface GeneratedToken {
  readonly tokenId: number;
  /** Null where logprobs were not asked for. */
  readonly logprob: number | null;
  /** The likeliest tokens, best first, as many as were asked for. */
  readonly alternatives: readonly TokenLogprob[];
}

/** "stop": the model ended its answer. "length": maxTokens are there, or the context is full. */
export type FinishReason = "stop" | "length";

export interface Completion {
  readonly finishReason: FinishReason;
  readonly promptTokens: number;
  /** Of the prompt's tokens, those whose keys and values were there already. */
  readonly cachedTokens: number;
  readonly completionTokens: number;
}

/** Where tokens come from: the engine, or in tests something like it. Yields each new token; a stop token is not yielded. */
export interface TokenSource {
  generateTokens(request: TokenRequest): AsyncGenerator<GeneratedToken, Completion, undefined>;
}

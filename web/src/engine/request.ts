// Requests to the engine and its answers, in token ids.

import type { SamplingOptions } from "../shared/sampling.js";

export type { SamplingOptions } from "../shared/sampling.js";

/** The tokens that may come next: the state of a grammar in one answer. Only one request may use it. */
export interface Constraint {
  /**
   * One bit for each token id, ceil(V / 32) words, least significant bit first: whether it may come next. Null if all
   * may.
   */
  mask(): Int32Array<ArrayBuffer> | null;
  /** Advance by a sampled token. Stop tokens are not passed. */
  accept(tokenId: number): void;
  /** Whether only the end may come. */
  readonly finished: boolean;
  /** Whether the answer so far is complete, so that maxTokens does not cut it off. */
  readonly complete: boolean;
  /** The number of tokens of the shortest known answer; not known for all grammars. */
  readonly needed?: number | undefined;
  /** ``tokens`` tokens of the answer came before the constrained part. */
  spend?(tokens: number): void;
  /** Frees memory outside of JavaScript. The engine calls it when the answer ends. */
  dispose(): void;
}

/**
 * Called before each token of an answer with the model's logits (V,), which it may change in place to finite numbers;
 * penalties, bias and mask apply afterwards. Then called with the sampled token, including the token that ends the
 * answer. An exception ends the answer. It costs a round trip to the device for each token.
 */
export type LogitProcessor = (logitsOrToken: Float32Array | number) => void;

/**
 * An image of a prompt: what one of a model's towers reads alone, which is a tile of a picture, a picture that is not cut,
 * or a sound (``isSound``). Its ``features`` (length, E) take the places of ``length`` placeholder tokens, from ``offset`` on.
 *
 * ``key`` is the SHA-256 of its picture and of how the model reads that, in hexadecimal digits, and ``first`` the number
 * of features of the picture's tiles before it, 0 by default. Images with the same two have the same features.
 * ``columns`` of its features are side by side, which models that rotate by row and column (M-RoPE) need to know.
 */
export interface PromptImage {
  readonly offset: number;
  readonly length: number;
  readonly key: string;
  readonly first?: number | undefined;
  readonly columns?: number | undefined;
  readonly isSound?: boolean | undefined;
  readonly features: Float32Array;
}

export interface TokenRequest {
  readonly promptIds: readonly number[];
  /** The images of the prompt, in the order of their places. They cannot be combined with ``whenFull: { keep }``. */
  readonly images?: readonly PromptImage[] | undefined;
  /** At most this many new tokens; by default, until the context is full. */
  readonly maxTokens?: number | undefined;
  readonly sampling?: SamplingOptions | undefined;
  /** The number of alternatives, 0 to 20, listed with the log-probability of each chosen token; neither by default. */
  readonly logprobs?: number | undefined;
  /**
   * How many tokens at the end of the prompt get a log-probability; none by default. The prompt's first token never
   * does.
   */
  readonly promptLogprobs?: number | undefined;
  /** The number of most likely tokens, 0 to 20, listed with each of them; 0 by default. */
  readonly promptAlternatives?: number | undefined;
  /**
   * Receives these tokens of the prompt before the first token of the answer, in the order of the prompt, each with its
   * log-probability in nats given all tokens before it. Not called by an engine that cannot compute them.
   */
  readonly onPromptLogprobs?: ((tokens: readonly GeneratedToken[]) => void) | undefined;
  /** Tokens that end the answer, like the model's own end tokens. */
  readonly stopTokenIds?: readonly number[] | undefined;
  readonly constraint?: Constraint | undefined;
  readonly logitProcessor?: LogitProcessor | undefined;
  /** Requests with a higher priority are scheduled first; 0 by default. */
  readonly priority?: number | undefined;
  /**
   * The behaviour when the context is full: the answer ends (the default), or old tokens after the first ``keep`` are
   * dropped.
   */
  readonly whenFull?: "stop" | { readonly keep: number } | undefined;
  readonly signal?: AbortSignal | undefined;
  /** The name of a loaded LoRA adapter; by default, the model without one. */
  readonly adapter?: string | undefined;
  /**
   * How many tokens at the start of the prompt later prompts share, such as a system message's; or another prompt that
   * shares them. Their keys and values stay on this device across reloads, if the engine keeps any.
   */
  readonly prefix?: number | (() => readonly number[]) | undefined;
  /** What an earlier run of this request has generated: it comes first, and then the rest as in that run. */
  readonly begun?: BegunAnswer | undefined;
  /** Receives each token of the answer, those of ``begun`` included, before it is yielded, and last the end. */
  readonly onGenerated?: ((generated: GeneratedToken | AnswerEnd) => void) | undefined;
}

/** The first tokens of an answer, or all of them with its ``end``, after which nothing is computed. */
export interface BegunAnswer {
  readonly tokens: readonly GeneratedToken[];
  readonly end?: AnswerEnd | undefined;
}

export interface TokenLogprob {
  readonly tokenId: number;
  readonly logprob: number;
}

export interface GeneratedToken {
  readonly tokenId: number;
  /** Null unless logprobs were requested. */
  readonly logprob: number | null;
  /** The requested number of most likely tokens, best first. */
  readonly alternatives: readonly TokenLogprob[];
}

/**
 * "stop": the model ended its answer, or the answer is complete under its constraint. "length": maxTokens is reached,
 * or the context is full.
 */
export type FinishReason = "stop" | "length";

export interface AnswerEnd {
  readonly finishReason: FinishReason;
  readonly promptTokens: number;
  /** How many of the prompt's tokens were in a cache. */
  readonly cachedTokens: number;
  readonly completionTokens: number;
  /** The steps of the model that sampled them and the token that ended the answer; missing if they are unknown. */
  readonly passes?: number | undefined;
  /** Drafts that were checked, and those that were right; missing if none was checked. */
  readonly draftedTokens?: number | undefined;
  readonly acceptedTokens?: number | undefined;
  /** The sampled token that ended the answer and is not part of it, if one did. */
  readonly endToken?: GeneratedToken | undefined;
}

/**
 * Something that generates tokens: the engine, or a replacement in tests. Yields each new token, without a stop token.
 */
export interface TokenSource {
  generateTokens(request: TokenRequest): AsyncGenerator<GeneratedToken, AnswerEnd, undefined>;
}

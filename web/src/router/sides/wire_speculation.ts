// Speculation across the wire: a near model guesses tokens, a far one with the same tokenizer says which hold, several at a time. A token request flows in; the
// far model's tokens flow out, those that it would have said alone, greedy or sampled with a seed. What it gains is the far side's: fewer forwards a token.

import type { Completion, GeneratedToken, TokenRequest, TokenSource } from "../../engine/request.js";
import { RequestError } from "../../errors.js";
import type { NearTokens } from "./near_drafts.js";
import { NearDrafts } from "./near_drafts.js";
import type { Opening, SocketClass } from "./verify_socket.js";
import { VerifySocket } from "./verify_socket.js";

export interface WireSpeculationOptions {
  /** Of the server, with or without /v1 at its end. */
  readonly baseURL: string;
  readonly apiKey?: string | null | undefined;
  /** The server's name for the model. */
  readonly model: string;
  /** Of the near model's tokenizer.json: `Engine.tokenizerSha256`. */
  readonly tokenizerSha256: string;
  /** Guessed at once; 4 where it is not given. */
  readonly draftTokens?: number | undefined;
  /** The platform's where it is not given. */
  readonly WebSocket?: SocketClass | undefined;
  /** Asked about the end of the answer with the guesses behind it, before these leave; all may if it is not given. */
  readonly maySend?: ((tokenIds: readonly number[]) => boolean) | undefined;
}

/** Of the answer, so many tokens before the guesses are looked at with them. */
const ASKED_TOKENS = 256;

/** Of all answers: rounds, tokens guessed, of these the right ones, and tokens in all. */
export interface WireCounts {
  readonly rounds: number;
  readonly drafted: number;
  readonly accepted: number;
  readonly tokens: number;
}

export class WireSpeculation implements TokenSource {
  readonly #counts = { rounds: 0, drafted: 0, accepted: 0, tokens: 0 };
  readonly #Socket: SocketClass;

  /** ``near`` stays its owner's. Throws RequestError where the platform has no WebSocket. */
  constructor(
    private readonly near: NearTokens,
    private readonly options: WireSpeculationOptions,
  ) {
    const Socket = options.WebSocket ?? (globalThis as { readonly WebSocket?: SocketClass }).WebSocket;
    if (Socket === undefined)
      throw new RequestError("This platform has no WebSocket; give one as WebSocket", { param: "WebSocket" });
    this.#Socket = Socket;
  }

  get counts(): WireCounts {
    return { ...this.#counts };
  }

  /**
   * Yields each token as it holds. Throws RequestError for what cannot be guessed or checked (``details.code``: tokenizer_differs, verify_version,
   * verify_unavailable, wrong_key), Unavailable where the server cannot be reached or breaks off, or the signal's reason.
   */
  async *generateTokens(given: TokenRequest): AsyncGenerator<GeneratedToken, Completion, undefined> {
    checkRequest(given);
    const request = withSeed(given);
    const { signal, stopTokenIds = [], promptIds } = request;
    signal?.throwIfAborted();
    const { baseURL, apiKey = null, draftTokens = 4 } = this.options;
    const socket = new VerifySocket(baseURL, apiKey, this.#Socket);
    let drafts: NearDrafts | null = null;
    const answer: number[] = [];
    let completionTokens = 0;
    let cachedTokens: number | null = null;
    try {
      const { max_drafts: maxDrafts } = await socket.open(this.opening(request), signal);
      drafts = new NearDrafts(this.near, request, Math.min(draftTokens, maxDrafts));
      for (;;) {
        const drafted = await drafts.next();
        const guesses = this.options.maySend?.([...answer.slice(-ASKED_TOKENS), ...drafted]) === false ? [] : drafted;
        signal?.throwIfAborted();
        socket.draft(guesses);
        drafts.goOn();
        const { tokens, finish_reason: finishReason, cached_tokens: cached } = await socket.accepted(signal);
        answer.push(...tokens);
        await drafts.learn(tokens);
        this.count(guesses, tokens);
        cachedTokens ??= cached;
        for (const tokenId of tokens) {
          if (stopTokenIds.includes(tokenId))
            return { finishReason: "stop", promptTokens: promptIds.length, cachedTokens, completionTokens };
          // A server is not trusted to stop where it should.
          if (completionTokens === request.maxTokens)
            return { finishReason: "length", promptTokens: promptIds.length, cachedTokens, completionTokens };
          completionTokens += 1;
          yield { tokenId, logprob: null, alternatives: [] };
        }
        if (finishReason !== undefined)
          return { finishReason, promptTokens: promptIds.length, cachedTokens, completionTokens };
      }
    } finally {
      socket.close();
      await drafts?.close();
    }
  }

  private opening({ promptIds, maxTokens, sampling = {}, priority }: TokenRequest): Opening {
    const { temperature, topP, topK, minP, seed } = sampling;
    const { model, tokenizerSha256 } = this.options;
    return {
      model,
      tokenizer_sha256: tokenizerSha256,
      prompt: promptIds,
      max_tokens: maxTokens,
      temperature,
      top_p: topP,
      top_k: topK,
      min_p: minP,
      seed,
      priority,
    };
  }

  private count(guesses: readonly number[], tokens: readonly number[]): void {
    this.#counts.rounds += 1;
    this.#counts.drafted += guesses.length;
    this.#counts.accepted += guesses.filter((guess, index) => guess === tokens[index]).length;
    this.#counts.tokens += tokens.length;
  }
}

/** With a seed that both sides share: of the same seed they draw alike. */
function withSeed(request: TokenRequest): TokenRequest {
  const { sampling = {} } = request;
  const { temperature = 0, seed = crypto.getRandomValues(new Uint32Array(1))[0] } = sampling;
  return temperature === 0 ? request : { ...request, sampling: { ...sampling, seed } };
}

/** Throws RequestError for what drafts are not checked with. */
export function checkRequest({ sampling = {}, constraint, whenFull = "stop", logprobs }: TokenRequest): void {
  const { repetitionPenalty = 1, frequencyPenalty = 0, presencePenalty = 0, logitBias } = sampling;
  const wrong = {
    penalties: repetitionPenalty !== 1 || frequencyPenalty !== 0 || presencePenalty !== 0,
    logitBias: logitBias !== undefined && logitBias.size > 0,
    constraint: constraint !== undefined,
    whenFull: whenFull !== "stop",
    logprobs: logprobs !== undefined,
  };
  const found = Object.entries(wrong).find(([, given]) => given)?.[0];
  if (found !== undefined)
    throw new RequestError(`${found}: not supported when drafts are checked over the wire; send the request to the far side alone`, {
      param: found,
    });
}

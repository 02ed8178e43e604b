// Speculation across the wire: a near model guesses several tokens at a time, and a far model with the same tokenizer
// checks them. The tokens are those that the far model alone would give, greedy or sampled with a seed. The far side
// gains: it needs fewer forwards per token.

import type { CommonParams } from "../../api/parameters.js";
import type { AnswerEnd, GeneratedToken, TokenRequest, TokenSource } from "../../engine/request.js";
import { penalizes } from "../../engine/resolved_sampling.js";
import { RequestError } from "../../errors.js";
import type { SamplingOptions } from "../../shared/sampling.js";
import { SAMPLING } from "../../shared/sampling.js";
import type { NearTokens } from "./near_drafts.js";
import { NearDrafts } from "./near_drafts.js";
import type { Opening, SocketClass } from "./verify_socket.js";
import { VerifySocket } from "./verify_socket.js";

export interface WireSpeculationOptions {
  /** The server's address, with or without /v1 at its end. */
  readonly baseURL: string;
  readonly apiKey?: string | null | undefined;
  /** The server's name for the model. */
  readonly model: string;
  /** The hash of the near model's tokenizer.json: `Engine.tokenizerSha256`. */
  readonly tokenizerSha256: string;
  /** The number of tokens to guess at once. Default: 4. */
  readonly draftTokens?: number | undefined;
  /** Default: the platform's. */
  readonly WebSocket?: SocketClass | undefined;
  /** Gets the end of the answer with the guesses after it, before the guesses are sent. Default: all may be sent. */
  readonly maySend?: ((tokenIds: readonly number[]) => boolean) | undefined;
}

/** This many tokens of the answer before the guesses are searched together with them. */
const SEARCHED_TOKENS = 256;

/** Totals of all answers: rounds, guessed tokens, accepted guesses, and all tokens. */
export interface WireCounts {
  readonly rounds: number;
  readonly drafted: number;
  readonly accepted: number;
  readonly tokens: number;
}

export class WireSpeculation implements TokenSource {
  readonly #counts = { rounds: 0, drafted: 0, accepted: 0, tokens: 0 };
  readonly #Socket: SocketClass;

  /** The caller still owns ``near``. Throws RequestError if the platform has no WebSocket. */
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
   * Yields each accepted token. Throws RequestError for requests that cannot be guessed or checked (``details.code``:
   * tokenizer_differs, verify_version, verify_unavailable, wrong_key), Unavailable if the server cannot be reached or
   * breaks off, or the signal's reason.
   */
  async *generateTokens(unseeded: TokenRequest): AsyncGenerator<GeneratedToken, AnswerEnd, undefined> {
    checkRequest(unseeded);
    const request = withSeed(unseeded);
    const { signal, stopTokenIds = [], promptIds } = request;
    signal?.throwIfAborted();
    const { baseURL, apiKey = null, draftTokens = 4 } = this.options;
    const socket = new VerifySocket(baseURL, apiKey, this.#Socket);
    let drafts: NearDrafts | null = null;
    const answer: number[] = [];
    let completionTokens = 0;
    let cachedTokens: number | null = null;
    try {
      const { max_drafts: maxDrafts } = await socket.open(this.#opening(request), signal);
      drafts = new NearDrafts(this.near, request, Math.min(draftTokens, maxDrafts));
      for (;;) {
        const drafted = await drafts.next();
        const guesses =
          this.options.maySend?.([...answer.slice(-SEARCHED_TOKENS), ...drafted]) === false ? [] : drafted;
        signal?.throwIfAborted();
        socket.draft(guesses);
        drafts.draftAhead();
        const { tokens, finish_reason: finishReason, cached_tokens: cached } = await socket.accepted(signal);
        answer.push(...tokens);
        await drafts.accept(tokens);
        this.#count(guesses, tokens);
        cachedTokens ??= cached;
        for (const tokenId of tokens) {
          if (stopTokenIds.includes(tokenId))
            return { finishReason: "stop", promptTokens: promptIds.length, cachedTokens, completionTokens };
          // Do not rely on the server to stop at the limit.
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

  #opening({ promptIds, maxTokens, sampling = {}, priority }: TokenRequest): Opening {
    const { model, tokenizerSha256 } = this.options;
    return {
      model,
      tokenizer_sha256: tokenizerSha256,
      prompt: promptIds,
      max_tokens: maxTokens,
      ...changedParameters(sampling),
      priority,
    };
  }

  #count(guesses: readonly number[], tokens: readonly number[]): void {
    this.#counts.rounds += 1;
    this.#counts.drafted += guesses.length;
    this.#counts.accepted += guesses.filter((guess, index) => guess === tokens[index]).length;
    this.#counts.tokens += tokens.length;
  }
}

/** The settings that are not the defaults, as parameters of the API. */
function changedParameters(sampling: SamplingOptions): Pick<CommonParams, "temperature"> {
  const changed = Object.entries(SAMPLING).flatMap(([name, row]) => {
    const value = sampling[name as keyof typeof SAMPLING];
    return value === undefined || ("default" in row && value === row.default) ? [] : [[row.parameter, value]];
  });
  return Object.fromEntries(changed) as Pick<CommonParams, "temperature">;
}

/** The request with a seed that both sides share, so that both draw the same random numbers. */
function withSeed(request: TokenRequest): TokenRequest {
  const { sampling = {} } = request;
  const { temperature = 0, seed = crypto.getRandomValues(new Uint32Array(1))[0] } = sampling;
  return temperature === 0 ? request : { ...request, sampling: { ...sampling, seed } };
}

/** Throws RequestError for parameters that drafts cannot be checked with. */
export function checkRequest({ sampling = {}, constraint, whenFull = "stop", logprobs }: TokenRequest): void {
  const { logitBias } = sampling;
  const options = {
    penalties: penalizes(sampling),
    logitBias: logitBias !== undefined && logitBias.size > 0,
    constraint: constraint !== undefined,
    whenFull: whenFull !== "stop",
    logprobs: logprobs !== undefined,
  };
  const unsupported = Object.entries(options).find(([, isSet]) => isSet)?.[0];
  if (unsupported !== undefined)
    throw new RequestError(
      `${unsupported}: not supported when drafts are checked over the wire; send the request to the far side alone`,
      {
        param: unsupported,
      },
    );
}

// The far side with near's guesses: the far model's tokens come over the wire, and near's own chat pipeline makes text
// from them. The answer is far's, with fewer of its forwards. If a request cannot be guessed or checked, far answers it
// as usual.

import type { ChatCompletionChunk } from "../../api/types.js";
import type { AnswerEnd, GeneratedToken, TokenRequest } from "../../engine/request.js";
import { NearfarError, RequestError } from "../../errors.js";
import { continuesAsTokens } from "../../shared/router/continuation.js";
import type { FarModel, FarOptions, FarSide } from "./far.js";
import type { DraftingEngine, NearSide } from "./near.js";
import type { PlainParams, Side, SideRequest } from "./sides.js";
import type { SocketClass } from "./verify_socket.js";
import type { WireCounts } from "./wire_speculation.js";
import { WireSpeculation, checkRequest } from "./wire_speculation.js";

export interface SpeculatingOptions extends Pick<FarOptions, "baseURL" | "apiKey"> {
  readonly draftTokens: number;
  /** Near's guesses that complete such a text are not sent. Default: all may be sent. */
  readonly isPrivate?: ((text: string) => boolean) | undefined;
  readonly WebSocket?: SocketClass | undefined;
}

/** The codes of servers that never check guesses. */
const NEVER_CHECKED: readonly unknown[] = ["verify_unavailable", "verify_version", "tokenizer_differs"];
const NO_COUNTS: WireCounts = { rounds: 0, drafted: 0, accepted: 0, tokens: 0 };

export class SpeculatingFar implements Side {
  #wire: WireSpeculation | null = null;
  /**
   * Whether both sides make the same token ids from a chat. Even with the same tokenizer, the chat templates may
   * differ.
   */
  #readsAlike = false;
  #isOff = false;

  constructor(
    private readonly far: FarSide,
    private readonly near: NearSide,
    private readonly options: SpeculatingOptions,
  ) {}

  get counts(): WireCounts {
    return this.#wire?.counts ?? NO_COUNTS;
  }

  async *answer(request: SideRequest): AsyncGenerator<ChatCompletionChunk, void, undefined> {
    const model = await this.far.reach(request.signal);
    const engine = this.near.drafting;
    let neverAgain = false;
    if (engine !== null && !this.#isOff && isPlain(request) && agree(engine, model)) {
      let started = false;
      try {
        for await (const chunk of this.#speculate(engine, model, request)) {
          started = true;
          yield chunk;
        }
        return;
      } catch (error) {
        if (started || request.signal.aborted || !isRefusal(error)) throw error;
        neverAgain = NEVER_CHECKED.includes(error.details.code);
      }
    }
    for await (const chunk of this.far.answer(request)) {
      // The server works, so only the guesses are the problem.
      this.#isOff ||= neverAgain;
      yield chunk;
    }
  }

  async *#speculate(
    engine: DraftingEngine,
    { id, tokenizerSha256 }: FarModel,
    { params, signal }: SideRequest,
  ): AsyncGenerator<ChatCompletionChunk, void, undefined> {
    const { isPrivate, ...options } = this.options;
    const maySend = isPrivate && ((ids: readonly number[]) => !isPrivate(engine.decode(ids)));
    const wire = (this.#wire ??= new WireSpeculation(engine, {
      ...options,
      maySend,
      model: id,
      tokenizerSha256: tokenizerSha256 ?? "",
    }));
    const tokens = { generateTokens: (request: TokenRequest) => this.#checked(wire, request, params, signal) };
    const chunks = await engine
      .over(tokens)
      .create({ ...params, stream: true, stream_options: { include_usage: true } }, { signal });
    for await (const chunk of chunks) yield { ...chunk, model: id };
  }

  /** The far model's tokens, if both sides make the same prompt tokens. */
  async *#checked(
    wire: WireSpeculation,
    request: TokenRequest,
    { messages }: PlainParams,
    signal: AbortSignal,
  ): AsyncGenerator<GeneratedToken, AnswerEnd, undefined> {
    checkRequest(request);
    if (!this.#readsAlike) {
      const theirs = await this.far.tokenize(messages, signal);
      if (theirs.length !== request.promptIds.length || theirs.some((id, index) => id !== request.promptIds[index])) {
        throw new RequestError("The far side makes other tokens from a chat; is its chat template different?", {
          code: "tokenizer_differs",
        });
      }
      this.#readsAlike = true;
    }
    return yield* wire.generateTokens(request);
  }
}

/** A new answer from its start, without a format and without log-probabilities. */
function isPlain({ params, from, logprobs, kept }: SideRequest): boolean {
  return from === null && logprobs === null && kept?.key === undefined && continuesAsTokens(params);
}

function agree({ info }: DraftingEngine, { verify, tokenizerSha256 }: FarModel): boolean {
  return verify && tokenizerSha256 !== null && tokenizerSha256 === info.tokenizerSha256;
}

/**
 * Either side reports that the request cannot be guessed or checked. If something else is wrong with it, far reports
 * that when it answers as usual.
 */
function isRefusal(error: unknown): error is NearfarError {
  return error instanceof RequestError || (error instanceof NearfarError && NEVER_CHECKED.includes(error.details.code));
}

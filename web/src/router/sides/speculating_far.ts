// The far side where near guesses for it: the far model's tokens come over the wire, and near's own chat pipeline puts them into words. The answer is far's,
// for fewer of its forwards. What cannot be guessed or checked is asked of far as ever.

import type { ChatCompletionChunk } from "../../api/types.js";
import type { Completion, GeneratedToken, TokenRequest } from "../../engine/request.js";
import { NearfarError, RequestError } from "../../errors.js";
import { continuesAsTokens } from "./dialect.js";
import type { FarModel, FarOptions, FarSide } from "./far.js";
import type { DraftingEngine, NearSide } from "./near.js";
import type { PlainParams, Side, SideRequest } from "./sides.js";
import type { SocketClass } from "./verify_socket.js";
import type { WireCounts } from "./wire_speculation.js";
import { WireSpeculation, checkRequest } from "./wire_speculation.js";

export interface SpeculatingOptions extends Pick<FarOptions, "baseURL" | "apiKey"> {
  readonly draftTokens: number;
  /** Near's guesses that complete such a text do not leave; all may if it is not given. */
  readonly isPrivate?: ((text: string) => boolean) | undefined;
  readonly WebSocket?: SocketClass | undefined;
}

/** What a server says that checks no guesses, now or later. */
const NEVER: readonly unknown[] = ["verify_unavailable", "verify_version", "tokenizer_differs"];
const NO_COUNTS: WireCounts = { rounds: 0, drafted: 0, accepted: 0, tokens: 0 };

export class SpeculatingFar implements Side {
  #wire: WireSpeculation | null = null;
  /** Both sides make the same token ids of a chat: the tokenizers may be the same and the chat templates not. */
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

  async *ask(request: SideRequest): AsyncGenerator<ChatCompletionChunk, void, undefined> {
    const model = await this.far.reach(request.signal);
    const engine = this.near.drafting;
    let neverAgain = false;
    if (engine !== null && !this.#isOff && isPlain(request) && agree(engine, model)) {
      let spoke = false;
      try {
        for await (const chunk of this.guessed(engine, model, request)) {
          spoke = true;
          yield chunk;
        }
        return;
      } catch (error) {
        if (spoke || request.signal.aborted || !isRefusal(error)) throw error;
        neverAgain = NEVER.includes(error.details.code);
      }
    }
    for await (const chunk of this.far.ask(request)) {
      // Now it is known that the server is there, so it is the guesses that it does not take.
      this.#isOff ||= neverAgain;
      yield chunk;
    }
  }

  private async *guessed(
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
    const tokens = { generateTokens: (request: TokenRequest) => this.checked(wire, request, params, signal) };
    const chunks = await engine
      .over(tokens)
      .create({ ...params, stream: true, stream_options: { include_usage: true } }, { signal });
    for await (const chunk of chunks) yield { ...chunk, model: id };
  }

  /** The far model's tokens, where the prompt is to it what it is to near. */
  private async *checked(
    wire: WireSpeculation,
    request: TokenRequest,
    { messages }: PlainParams,
    signal: AbortSignal,
  ): AsyncGenerator<GeneratedToken, Completion, undefined> {
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

/** An answer from its start, which nothing holds to a form and nobody wants to know more of. */
function isPlain({ params, from, logprobs }: SideRequest): boolean {
  return from === null && logprobs === null && continuesAsTokens(params);
}

function agree({ info }: DraftingEngine, { verify, tokenizerSha256 }: FarModel): boolean {
  return verify && tokenizerSha256 !== null && tokenizerSha256 === info.tokenizerSha256;
}

/** Either side says that this cannot be guessed or checked. Where more is wrong with it, far says so again when it is asked as ever. */
function isRefusal(error: unknown): error is NearfarError {
  return error instanceof RequestError || (error instanceof NearfarError && NEVER.includes(error.details.code));
}

// receipted(engine): an engine that signs receipts of its answers for requests with ``receipt: true``.

import type { EngineApi, EngineWithSessions } from "../api/engine_api.js";
import { Stream, anySignal } from "../api/stream.js";
import type {
  ChatCompletion,
  ChatCompletionChunk,
  ChatCompletionCreateParamsNonStreaming,
  ChatCompletionCreateParamsStreaming,
  Completion,
  CompletionChunk,
  CompletionCreateParamsNonStreaming,
  CompletionCreateParamsStreaming,
  RequestOptions,
  SignedReceipt,
} from "../api/types.js";
import { withMethods } from "../api/with_methods.js";
import { RequestError } from "../errors.js";
import { requireKnown } from "../known_options.js";
import type { AnyAnswer, AnyChoice, AnyParams } from "./answered.js";
import { Answered } from "./answered.js";
import type { ReceiptKey } from "./device_key.js";
import { deviceKey } from "./device_key.js";

export interface ReceiptOptions {
  /** By default that of this device. */
  readonly key?: ReceiptKey | undefined;
  /**
   * Gets every receipt, also that of an answer that was broken off after some tokens, such as near's part of an answer
   * that far goes on with.
   */
  readonly onReceipt?: ((receipt: SignedReceipt) => void) | undefined;
}

interface WithReceipt {
  /**
   * The answer, or the last chunk of its stream, has a signed receipt, which `nearfar verify` checks. It has hashes of
   * the request and of the tokens, and with ``return_token_ids`` the tokens of the answer.
   */
  readonly receipt?: boolean | null | undefined;
}

interface Create<N, S, Answer, Chunk> {
  create(params: N & WithReceipt, options?: RequestOptions): Promise<Answer>;
  create(params: S & WithReceipt, options?: RequestOptions): Promise<Stream<Chunk>>;
  create(params: (N | S) & WithReceipt, options?: RequestOptions): Promise<Answer | Stream<Chunk>>;
}

export interface ReceiptedMethods {
  readonly chat: {
    readonly completions: Create<
      ChatCompletionCreateParamsNonStreaming,
      ChatCompletionCreateParamsStreaming,
      ChatCompletion,
      ChatCompletionChunk
    >;
  };
  readonly completions: Create<
    CompletionCreateParamsNonStreaming,
    CompletionCreateParamsStreaming,
    Completion,
    CompletionChunk
  >;
}

export type Receipted<E> = Omit<E, keyof ReceiptedMethods> & ReceiptedMethods;

type AnyCreate = (params: object, options?: RequestOptions) => Promise<AnyAnswer | AsyncIterable<AnyChunk>>;
type AnyChunk = AnyAnswer & { readonly usage?: object | null; readonly timings?: object };

/** The engine, an engine in a worker, or Hybrid's near engine. A key is made when the first receipt is signed. */
export function receipted<E extends EngineApi>(engine: E, options: ReceiptOptions = {}): Receipted<E> {
  requireKnown(options, ["key", "onReceipt"]);
  let key: Promise<ReceiptKey> | null = null;
  const sign = async (answered: Answered, isWhole: boolean): Promise<SignedReceipt> => {
    key ??= options.key === undefined ? deviceKey() : Promise.resolve(options.key);
    const receipt = await (await key).sign(await answered.receipt(isWhole));
    options.onReceipt?.(receipt);
    return receipt;
  };
  const issuer = new Issuer(engine, sign, options.onReceipt !== undefined);
  const completions = (plain: { create: unknown }): object => ({
    ...plain,
    create: (params: AnyParams & WithReceipt, given?: RequestOptions) =>
      issuer.create(plain.create as AnyCreate, plain, params, given),
  });
  return withMethods(engine, {
    chat: { ...engine.chat, completions: completions(engine.chat.completions) },
    completions: completions(engine.completions),
  }) as Receipted<E>;
}

class Issuer {
  constructor(
    private readonly engine: EngineApi,
    private readonly sign: (answered: Answered, isWhole: boolean) => Promise<SignedReceipt>,
    private readonly keepsParts: boolean,
  ) {}

  async create(
    create: AnyCreate,
    owner: object,
    { receipt, ...params }: AnyParams & WithReceipt,
    { onReceipt, ...options }: RequestOptions = {},
  ): Promise<unknown> {
    const plain = create.bind(owner);
    if (receipt !== true) return plain(params, options);
    await this.#check(params, options);
    const { seed: given } = params;
    const seed = typeof given === "number" ? given : (crypto.getRandomValues(new Uint32Array(1))[0] ?? 0);
    const answered = new Answered(params, seed, this.engine.info);
    const listsIds = params.return_token_ids === true;
    const sent = { ...params, seed, return_token_ids: true };
    if (params.stream === true) {
      const { stream_options: shown } = params as { readonly stream_options?: { readonly include_usage?: boolean } };
      const counted = { ...sent, stream_options: { ...shown, include_usage: true } };
      const chunks = async (left: AbortSignal): Promise<AsyncIterable<AnyChunk>> =>
        (await plain(counted, { ...options, signal: anySignal(options.signal, left) })) as AsyncIterable<AnyChunk>;
      return new Stream((left) =>
        this.#stream(chunks(left), answered, listsIds, shown?.include_usage === true, options, onReceipt),
      );
    }
    const answer = (await plain(sent, options)) as AnyAnswer;
    answered.note(answer);
    const receipts = [await this.sign(answered, options.interrupt?.aborted !== true)];
    return { ...(listsIds ? answer : withoutIds(answer)), receipts };
  }

  async *#stream(
    chunks: Promise<AsyncIterable<AnyChunk>>,
    answered: Answered,
    listsIds: boolean,
    includeUsage: boolean,
    { interrupt }: RequestOptions,
    onReceipt: RequestOptions["onReceipt"],
  ): AsyncGenerator<AnyChunk, void, undefined> {
    let ended = false;
    try {
      for await (const chunk of await chunks) {
        answered.note(chunk);
        if (chunk.choices.length === 0 && chunk.usage) {
          ended = true;
          const receipts = [await this.sign(answered, interrupt?.aborted !== true)];
          const { usage, ...rest } = chunk;
          yield { ...rest, ...(includeUsage && { usage }), ...{ receipts } };
          continue;
        }
        const shown = listsIds ? chunk : withoutEmpty(withoutIds(chunk));
        if (shown !== null) yield shown;
      }
    } finally {
      if (!ended && (this.keepsParts || onReceipt) && answered.hasTokens) {
        const part = await this.sign(answered, false);
        onReceipt?.(part);
      }
    }
  }

  /** Throws RequestError for what a receipt could not say. */
  async #check(params: AnyParams, { begun }: RequestOptions): Promise<void> {
    const refused = (param: string, what: string): RequestError =>
      new RequestError(`receipt: is not supported ${what}; leave it out`, { param });
    if (params.functions != null) throw refused("receipt", "with functions, the older form of tools");
    if (begun !== undefined) throw refused("receipt", "for an answer that an earlier page has begun");
    const { listAdapters } = this.engine as Partial<EngineWithSessions>;
    const adapters = (await listAdapters?.call(this.engine)) ?? [];
    if (adapters.includes(params.model as string)) throw refused("receipt", "with a LoRA adapter");
  }
}

function withoutIds({ prompt_token_ids: _promptIds, ...answer }: AnyAnswer): AnyAnswer {
  return {
    ...answer,
    choices: answer.choices.map(({ token_ids: _ids, prompt_token_ids: _ownPromptIds, ...choice }: AnyChoice) => choice),
  };
}

/** Without the choices that had nothing but ids; null if none is left. */
function withoutEmpty(chunk: AnyAnswer): AnyAnswer | null {
  const choices = chunk.choices.filter((choice) => {
    const { delta, text, logprobs, prompt_logprobs: listed, finish_reason: end } = choice as AnyChoice & Shown;
    const { content, ...rest } = delta ?? {};
    return end !== null || Boolean(logprobs ?? listed ?? text ?? content) || Object.keys(rest).length > 0;
  });
  return choices.length === 0 ? null : { ...chunk, choices };
}

interface Shown {
  readonly delta?: { readonly content?: string | null };
  readonly text?: string;
  readonly logprobs?: object | null;
  readonly prompt_logprobs?: object;
}

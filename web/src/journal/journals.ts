// The answers that are kept on this device: listed, deleted, and continued by the method that they were requested with.

import type { HybridParams } from "../router/request.js";
import type { HybridRequestOptions } from "../router/hybrid_completions.js";
import type { EngineApi } from "../api/engine_api.js";
import { Stream } from "../api/stream.js";
import type {
  ChatCompletion,
  ChatCompletionChunk,
  ChatCompletionCreateParams,
  Completion,
  CompletionChunk,
  CompletionCreateParams,
  RequestOptions,
} from "../api/types.js";
import { requireKnown } from "../known_options.js";
import type { AnswerEnd, GeneratedToken, TokenRequest } from "../engine/request.js";
import { RequestError, StorageError } from "../errors.js";
import type { ChatMessage, GenerateOptions, GenerationEvent } from "../generation.js";
import { JournalStore, damaged, isId } from "./journal_store.js";
import type { Recording } from "./open_journal.js";
import { OpenJournal } from "./open_journal.js";
import type { Head, JournalApi, TokenModel } from "./record.js";
import { FORMAT, contentsOf, modelOf, sameModel } from "./record.js";
import { readArgs, requestText, storedArgs } from "./request.js";
import { SidesJournal } from "./sides_journal.js";

/** What two sides or one engine answer with. */
export interface Source {
  readonly info?: EngineApi["info"];
  readonly chat: {
    readonly completions: {
      create(params: never, options?: never): Promise<ChatCompletion | Stream<ChatCompletionChunk>>;
      /** Of a Hybrid. */
      readonly endFar?: (key: string) => void;
    };
  };
  readonly completions?: EngineApi["completions"];
  readonly generate?: EngineApi["generate"];
  readonly generateTokens?: (request: TokenRequest) => AsyncGenerator<GeneratedToken, AnswerEnd, undefined>;
}

export interface JournalOptions extends Partial<Recording> {
  /** Beyond these bytes, the answers that were changed least recently are deleted; 16 MiB by default. */
  readonly budgetBytes?: number;
  /** Answers that were not changed for this time are deleted; 7 days by default. */
  readonly maxAgeMs?: number;
  /** Instead of this origin's file system and locks. */
  readonly store?: JournalStore;
}

export interface JournalInfo {
  readonly id: string;
  readonly api: JournalApi;
  readonly created: Date;
  readonly updated: Date;
  readonly bytes: number;
  /** The tokens of this device's model that are kept, of all choices. */
  readonly tokens: number;
  /** Whether the answer is complete. */
  readonly done: boolean;
  /** Whether a tab or a worker writes it now. */
  readonly running: boolean;
  /** The arguments of the request: parameters, or a prompt and options. */
  readonly args: readonly unknown[];
}

/** An answer from its beginning, with what was generated before the page went away, as its method streams it. */
export type ResumedAnswer =
  | { readonly api: "chat"; readonly answer: Stream<ChatCompletionChunk> }
  | { readonly api: "completions"; readonly answer: Stream<CompletionChunk> }
  | { readonly api: "generate"; readonly answer: AsyncGenerator<GenerationEvent, void, undefined> }
  | { readonly api: "tokens"; readonly answer: AsyncGenerator<GeneratedToken, AnswerEnd, undefined> };

const DAY_MS = 24 * 60 * 60 * 1000;

const KNOWN = ["budgetBytes", "maxAgeMs", "flushTokens", "flushMs", "keepPrivate", "onError", "store"];

export class Journals {
  readonly #options: Required<Omit<JournalOptions, "store">>;
  #store: Promise<JournalStore> | null;

  constructor(
    private readonly source: Source,
    { store, ...options }: JournalOptions = {},
  ) {
    requireKnown(options, KNOWN);
    this.#store = store === undefined ? null : Promise.resolve(store);
    this.#options = {
      budgetBytes: 2 ** 24,
      maxAgeMs: 7 * DAY_MS,
      flushTokens: 16,
      flushMs: 500,
      keepPrivate: false,
      onError: (error) => {
        console.warn("nearfar: an answer is not kept, or its rest:", error);
      },
      ...options,
    };
  }

  /** The answers that are kept, the latest first. ``onError`` receives those that cannot be read. Throws StorageError. */
  async list(): Promise<readonly JournalInfo[]> {
    const ids = await (await this.#opened()).ids();
    const readable = (id: string): Promise<JournalInfo | null> =>
      this.find(id).catch((error: unknown) => {
        this.#options.onError(error);
        return null;
      });
    const known = (await Promise.all(ids.map(readable))).filter((info) => info !== null);
    return known.sort((one, other) => other.updated.getTime() - one.updated.getTime());
  }

  /** One of them; null if there is none of this id. Throws StorageError. */
  async find(id: string): Promise<JournalInfo | null> {
    const store = await this.#opened();
    const [stored, { bytes, updatedMs }] = await Promise.all([store.read(requireId(id)), store.size(id)]);
    if (stored === null) return null;
    const { api, createdMs, args } = stored.head;
    const { choices, done } = contentsOf(stored.all);
    const tokens = choices.reduce((sum, choice) => sum + choice.tokens.length, 0);
    const [created, updated] = [new Date(createdMs), new Date(updatedMs)];
    return { id, api, created, updated, bytes, tokens, done, running: await store.isHeld(id), args: readArgs(args) };
  }

  /**
   * Deletes an answer, for example once the page has stored it; what far still generates of it ends. Does nothing if
   * there is none. Throws StorageError (``code``: "in_use") while it is generated.
   */
  async delete(id: string): Promise<void> {
    const store = await this.#opened();
    const release = await store.hold(requireId(id));
    try {
      const stored = await store.read(id).catch(() => null);
      const { far, done } = contentsOf(stored?.all ?? {});
      if (far !== null && !done) this.source.chat.completions.endFar?.(far.key);
      await store.delete(id);
    } finally {
      release();
    }
  }

  /**
   * Continues an answer, by the method that it was requested with, streamed from its beginning. Throws StorageError
   * (``code``: "not_found"; "in_use" if another tab writes it; "damaged", of tokens that the model has not when the stream
   * begins), RequestError if another model is loaded, and what the method throws.
   */
  async resume(id: string, { signal }: Pick<RequestOptions, "signal"> = {}): Promise<ResumedAnswer> {
    const stored = await (await this.#opened()).read(requireId(id));
    if (stored === null)
      throw new StorageError(`No answer '${id}' is kept here; request it with this id first`, {
        code: "not_found",
        id,
      });
    const { api, args } = stored.head;
    const [first, second] = readArgs(args) as [never, never];
    const streamed = (): never => {
      const params = first as { readonly stream?: boolean };
      return {
        ...params,
        ...(params.stream !== true && { stream_options: { include_usage: true } }),
        stream: true,
      } as never;
    };
    switch (api) {
      case "chat":
        return { api, answer: (await this.chat(id, streamed(), { signal })) as Stream<ChatCompletionChunk> };
      case "completions":
        return { api, answer: (await this.completions(id, streamed(), { signal })) as Stream<CompletionChunk> };
      case "generate":
        return {
          api,
          answer: this.generate(id, first, { ...(second as GenerateOptions), signal: signal ?? undefined }),
        };
      case "tokens":
        return { api, answer: this.generateTokens(id, { ...(first as TokenRequest), signal: signal ?? undefined }) };
    }
  }

  /** The method chat.completions.create of an answer with an id. */
  chat(
    id: string,
    params: ChatCompletionCreateParams | HybridParams,
    options: RequestOptions & HybridRequestOptions = {},
  ): Promise<ChatCompletion | Stream<ChatCompletionChunk>> {
    const { completions } = this.source.chat;
    return this.#answered("chat", id, params, options, (journal, seeded) => {
      const recorded = this.#isHybrid
        ? { journal: new SidesJournal(journal, this.#options.keepPrivate) }
        : observed(journal);
      return completions.create(seeded, { ...options, ...recorded } as never);
    });
  }

  /** The method completions.create of an answer with an id. */
  completions(
    id: string,
    params: CompletionCreateParams,
    options: RequestOptions = {},
  ): Promise<Completion | Stream<CompletionChunk>> {
    const { completions } = this.source;
    if (completions === undefined) throw new RequestError("A Hybrid answers chats only");
    return this.#answered("completions", id, params, options, (journal, seeded) =>
      completions.create(seeded, { ...options, ...observed(journal) }),
    );
  }

  /** The method generate of an answer with an id. */
  async *generate(
    id: string,
    prompt: string | readonly ChatMessage[],
    options: GenerateOptions = {},
  ): AsyncGenerator<GenerationEvent, void, undefined> {
    const { source } = this;
    if (source.generate === undefined) throw new RequestError("A Hybrid has no generate; use chat.completions.create");
    const journal = await this.#open("generate", id, [prompt, options], options.seed);
    yield* followed(journal, source.generate(prompt, { ...options, seed: journal.head.seed, ...observedOne(journal) }));
  }

  /** The method generateTokens of an answer with an id. */
  async *generateTokens(id: string, request: TokenRequest): AsyncGenerator<GeneratedToken, AnswerEnd, undefined> {
    const { source } = this;
    if (source.generateTokens === undefined)
      throw new RequestError("This engine has no generateTokens; load it with Engine.load or connectEngine");
    const journal = await this.#open("tokens", id, [request], request.sampling?.seed);
    const sampling = { ...request.sampling, seed: journal.head.seed };
    return yield* followed(journal, source.generateTokens({ ...request, sampling, ...observedOne(journal) }));
  }

  /** Whether two sides answer. */
  get #isHybrid(): boolean {
    return this.source.completions === undefined;
  }

  async #answered<T extends object, C extends object>(
    api: JournalApi,
    id: string,
    params: object & { readonly stream?: boolean | null | undefined; readonly seed?: number | null | undefined },
    options: RequestOptions,
    ask: (journal: OpenJournal, params: never) => Promise<T | Stream<C>>,
  ): Promise<T | Stream<C>> {
    if (options.logitProcessor !== undefined)
      throw new RequestError("logitProcessor is a function, which cannot be kept for a later page; leave the id out", {
        param: "logitProcessor",
      });
    const journal = await this.#open(api, id, [params], params.seed ?? undefined);
    const head = { id, created: Math.floor(journal.head.createdMs / 1000) };
    try {
      const answer = await ask(journal, { ...params, seed: journal.head.seed } as never);
      if (params.stream === true)
        return new Stream((left) => withHead(followed(journal, itemsUntil(answer as Stream<C>, left), left), head));
      await journal.finish();
      await journal.close();
      return { ...(answer as T), ...head };
    } catch (error) {
      const failure = ofTokens(error, id);
      await journal.close(failure);
      throw failure;
    }
  }

  /** The journal of an answer, which this page holds from now on. Throws StorageError, RequestError. */
  async #open(api: JournalApi, id: string, args: readonly unknown[], seed: number | undefined): Promise<OpenJournal> {
    const store = await this.#opened();
    const kept = await storedArgs(args);
    const release = await store.hold(requireId(id));
    try {
      const stored = await store.read(id);
      const { info } = this.source;
      const model = info === undefined ? null : modelOf(info);
      if (stored !== null) requireSame(stored.head, api, kept, model);
      const head = stored?.head ?? {
        format: FORMAT,
        id,
        api,
        createdMs: Date.now(),
        model,
        args: kept,
        seed: seed ?? crypto.getRandomValues(new Uint32Array(1))[0] ?? 0,
      };
      const journal = new OpenJournal(store, head, stored, this.#options, release);
      if (!this.#isHybrid) await journal.begin();
      if (stored === null) await this.#sweep(store, id);
      return journal;
    } catch (error) {
      release();
      throw error;
    }
  }

  /** Delete answers that are too old or too many, but none that a tab writes. */
  async #sweep(store: JournalStore, except: string): Promise<void> {
    const others = (await store.ids()).filter((id) => id !== except);
    const sizes = await Promise.all(others.map(async (id) => ({ id, ...(await store.size(id)) })));
    let total = (await store.size(except)).bytes;
    for (const { id, bytes, updatedMs } of sizes.sort((one, other) => other.updatedMs - one.updatedMs)) {
      total += bytes;
      const isOld = Date.now() - updatedMs > this.#options.maxAgeMs;
      if (!isOld && total <= this.#options.budgetBytes) continue;
      await this.delete(id).catch((error: unknown) => {
        if (!(error instanceof StorageError)) throw error;
      });
    }
  }

  async #opened(): Promise<JournalStore> {
    this.#store ??= JournalStore.open();
    return this.#store;
  }
}

/** What an engine continues and reports. */
function observed(journal: OpenJournal): Pick<RequestOptions, "begun" | "onGenerated"> {
  return { begun: journal.begun, onGenerated: journal.generated };
}

/** The same for one answer. */
function observedOne(journal: OpenJournal): Pick<TokenRequest, "begun" | "onGenerated"> {
  return {
    begun: journal.begun[0],
    onGenerated: (generated) => {
      journal.generated(0, generated);
    },
  };
}

/** Marks the journal as complete after the last item, unless the reader left before. */
async function* followed<T, R>(
  journal: OpenJournal,
  items: AsyncGenerator<T, R, undefined>,
  left?: AbortSignal,
): AsyncGenerator<T, R, undefined> {
  let failure: unknown = null;
  try {
    const end = yield* items;
    if (left?.aborted !== true) await journal.finish();
    return end;
  } catch (error) {
    failure = ofTokens(error, journal.head.id);
    throw failure;
  } finally {
    await journal.close(failure);
  }
}

/** An engine's refusal of tokens that it is to continue, which its vocabulary has not: the journal's, not the request's. */
function ofTokens(error: unknown, id: string): unknown {
  return error instanceof RequestError && error.details.param === "begun" ? damaged(id, error) : error;
}

function itemsUntil<C>(stream: Stream<C>, left: AbortSignal): AsyncGenerator<C, unknown, undefined> {
  left.addEventListener("abort", () => {
    stream.controller.abort(left.reason);
  });
  return stream[Symbol.asyncIterator]();
}

async function* withHead<C extends object>(
  chunks: AsyncIterable<C>,
  head: { readonly id: string; readonly created: number },
): AsyncGenerator<C, void, undefined> {
  for await (const chunk of chunks) yield { ...chunk, ...head };
}

function requireId(id: string): string {
  if (isId(id)) return id;
  throw new RequestError("The id of an answer is a Unicode text of 1 to 240 characters, fewer if they are not ASCII", {
    param: "id",
  });
}

function requireSame(head: Head, api: JournalApi, args: readonly unknown[], model: TokenModel | null): void {
  const { id } = head;
  if (requestText(head.api, head.args) !== requestText(api, args))
    throw new RequestError(`The answer '${id}' that is kept here is to another request; delete it, or use another id`, {
      param: "id",
      code: "other_request",
    });
  if (head.model !== null && !sameModel(head.model, model))
    throw new RequestError(
      `The answer '${id}' was begun by ${head.model.model} (${head.model.quantization}), and this is ` +
        `${model?.model ?? "another model"} (${model?.quantization ?? ""}); load that model, or delete the answer`,
      { param: "id", code: "other_model" },
    );
}

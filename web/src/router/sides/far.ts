// The far side: a server with OpenAI's routes, ours or another. It queries what the server serves, and answers chats as
// chunks.

import type {
  ChatCompletionChunk,
  ChatCompletionDelta,
  ChatFinishReason,
  SignedReceipt,
  SoundTranscript,
} from "../../api/types.js";
import { RequestError, Unavailable } from "../../errors.js";
import { boundedAnswer } from "./bounded_answer.js";
import type { Clock } from "./clock.js";
import type { Dialect } from "./dialect.js";
import { continuesAsTokens, setsTemplateVariables } from "../../shared/router/continuation.js";
import { DIALECTS, chatBody, tokensBody } from "./dialect.js";
import type { Fetch, JsonObject } from "./far_http.js";
import { FarHttp } from "./far_http.js";
import type { PlainParams, Side, SideRequest } from "./sides.js";
import { remainingLimit, sideParams } from "./sides.js";

export interface FarOptions {
  /** The server's address, with or without /v1 at its end. */
  readonly baseURL: string;
  readonly apiKey?: string | null | undefined;
  /** The server's name for the model; optional if it serves only one. */
  readonly model?: string | null | undefined;
  /** Default: "nearfar". */
  readonly dialect?: Dialect | undefined;
  /** Whether its model reads images. Default: what `nearfar serve` reports, and false for other servers. */
  readonly vision?: boolean | undefined;
  /** Whether its model reads videos. Default: as for `vision`. */
  readonly video?: boolean | undefined;
  /** Whether its model reads sound in messages. Default: as for `vision`. */
  readonly sound?: boolean | undefined;
}

/** The server's report about its model; null if there is no report. */
export interface FarModel {
  readonly id: string;
  /** The name in the manifest of its bundle; its id if it reports none. */
  readonly name: string;
  readonly context: number | null;
  readonly tokenizerSha256: string | null;
  readonly tools: boolean;
  /** Whether it checks guesses (/v1/nearfar/verify). */
  readonly verify: boolean;
  /** Whether it reads images; likewise videos and recordings. */
  readonly vision: boolean;
  readonly video: boolean;
  readonly sound: boolean;
}

/** The version of the /v1/nearfar routes and of our extensions that this client supports. */
const API_VERSION = 1;
/** Other servers' names for OpenAI's finish reasons. */
const ENDS: Readonly<Record<string, ChatFinishReason>> = {
  eos_token: "stop",
  stop_sequence: "stop",
  max_tokens: "length",
};

export class FarSide implements Side {
  readonly dialect: Dialect;
  readonly #vision: boolean;
  readonly #video: boolean;
  readonly #sound: boolean;
  readonly #http: FarHttp;
  /** The model that the options name. */
  readonly requestedModel: string | null;
  #model: FarModel | null = null;
  #roundTripSeconds: number | null = null;

  /** Throws RequestError for invalid options. */
  constructor(
    { baseURL, apiKey, model, dialect = "nearfar", vision = false, video = false, sound = false }: FarOptions,
    fetch: Fetch,
    private readonly clock: Clock,
  ) {
    if (!DIALECTS.includes(dialect))
      throw new RequestError(`far.dialect is '${dialect}', it must be one of ${DIALECTS.join(", ")}`, {
        param: "far.dialect",
      });
    this.#http = new FarHttp(baseURL, apiKey ?? null, fetch, clock);
    this.requestedModel = model ?? null;
    this.dialect = dialect;
    this.#vision = vision;
    this.#video = video;
    this.#sound = sound;
  }

  get #isOurs(): boolean {
    return this.dialect === "nearfar";
  }

  get vision(): boolean {
    return this.#vision || this.#model?.vision === true;
  }

  get video(): boolean {
    return this.#video || this.#model?.video === true;
  }

  get sound(): boolean {
    return this.#sound || this.#model?.sound === true;
  }

  /** Null before the server was reached. */
  get model(): FarModel | null {
    return this.#model;
  }

  /** The time that the query of the models took; null before it succeeded. */
  get roundTripSeconds(): number | null {
    return this.#roundTripSeconds;
  }

  /** The time that an answer waits at the server, by its last report; otherwise 0. */
  get queueSeconds(): number {
    return this.#http.queueSeconds;
  }

  /**
   * The server's report about its models; it is queried until it has succeeded once. Throws Unavailable if the server
   * cannot be reached, RequestError (``details.code``: wrong_key, api_version, unknown_model) if it can never answer.
   */
  async reach(signal: AbortSignal): Promise<FarModel> {
    if (this.#model !== null) return this.#model;
    const requestedAt = this.clock.now();
    const model = this.#isOurs ? await this.#about(signal) : await this.#listed(signal);
    this.#roundTripSeconds = (this.clock.now() - requestedAt) / 1000;
    this.#model = model;
    return model;
  }

  answer(request: SideRequest): AsyncGenerator<ChatCompletionChunk, void, undefined> {
    // A gateway to other servers may send a token in pieces, and SGLang sends its reasoning and its content apart.
    return boundedAnswer(
      this.#allChunks(request),
      remainingLimit(request).max_tokens ?? Infinity,
      this.dialect === "vllm" || this.#isOurs,
    );
  }

  /** End the answer that our server generates under a key. */
  end(key: string): void {
    this.#http.end(key);
  }

  /** All chunks that the server sends. */
  async *#allChunks(request: SideRequest): AsyncGenerator<ChatCompletionChunk, void, undefined> {
    const { signal, logprobs, kept } = request;
    const { id } = await this.reach(signal);
    if (
      request.from?.tokenIds != null &&
      this.#isOurs &&
      logprobs === null &&
      continuesAsTokens(request.params) &&
      !setsTemplateVariables(request.params)
    ) {
      yield* this.#continueTokens(request, request.from.tokenIds, id);
      return;
    }
    const body = chatBody(await withSentPictures(sideParams(request)), id, this.dialect);
    request.onSent?.(body);
    for await (const value of this.#http.stream("/v1/chat/completions", body, signal, this.#isOurs, kept))
      yield chunkOf(value, id);
  }

  /** The answer of one of the server's routes for its model. Throws as `answer`. */
  async post(route: string, body: JsonObject, signal: AbortSignal): Promise<JsonObject> {
    return this.#http.objectOf(await this.open(route, body, signal));
  }

  /** The same before its body is read. */
  async open(route: string, body: JsonObject, signal: AbortSignal): Promise<Response> {
    const { id: model } = await this.reach(signal);
    return this.#http.open(route, { ...(await withSentPictures(body)), model }, signal);
  }

  /** The tokens of a chat's prompt, from a server of ours. Throws as `answer`. */
  async tokenize(messages: PlainParams["messages"], signal: AbortSignal): Promise<readonly number[]> {
    const { tokens } = await this.post("/tokenize", { messages }, signal);
    if (!isIds(tokens)) throw new Unavailable("The far side's /tokenize returned no token ids", { retryable: false });
    return tokens;
  }

  /**
   * Continues after these tokens of the answer: this is exact even if the text alone would be split into other tokens.
   */
  async *#continueTokens(
    request: SideRequest,
    tokenIds: readonly number[],
    model: string,
  ): AsyncGenerator<ChatCompletionChunk, void, undefined> {
    const { params, signal, kept } = request;
    const promptIds = await this.tokenize(params.messages, signal);
    const body = { ...tokensBody(params, model, [...promptIds, ...tokenIds]), ...remainingLimit(request) };
    request.onSent?.(body);
    for await (const value of this.#http.stream("/v1/completions", body, signal, this.#isOurs, kept)) {
      const choices = Array.isArray(value.choices)
        ? (value.choices as readonly { readonly text?: string; readonly finish_reason?: string | null }[])
        : [];
      yield chunkOf(
        {
          ...value,
          choices: choices.map(({ text = "", finish_reason }) => ({ delta: { content: text }, finish_reason })),
        },
        model,
      );
    }
  }

  async #about(signal: AbortSignal): Promise<FarModel> {
    const response = await this.#http.get("/v1/nearfar/about", signal);
    if (response?.api_version === undefined)
      throw new RequestError("The far side has no /v1/nearfar/about; if it is not nearfar serve, set far.dialect", {
        code: "api_version",
        param: "far.dialect",
      });
    if (response.api_version !== API_VERSION) {
      throw new RequestError(
        `The far side uses version ${JSON.stringify(response.api_version)} of nearfar's API, ` +
          `this client version ${API_VERSION}; update the older of them`,
        { code: "api_version" },
      );
    }
    const {
      id,
      model: name,
      context,
      tokenizer_sha256: sha256,
      tools,
      verify,
      vision,
      video,
      sound,
    } = this.#chosen(response.models);
    return {
      id,
      name: typeof name === "string" ? name : id,
      context: number(context),
      tokenizerSha256: typeof sha256 === "string" ? sha256 : null,
      tools: tools !== false,
      verify: verify === true,
      vision: vision === true,
      video: video === true,
      sound: sound === true,
    };
  }

  async #listed(signal: AbortSignal): Promise<FarModel> {
    const response = await this.#http.get("/v1/models", signal);
    if (response === null)
      throw new RequestError("The far side has no /v1/models; is far.baseURL right?", {
        code: "unknown_model",
        param: "far.baseURL",
      });
    const { id, max_model_len: context } = this.#chosen(response.data);
    return {
      id,
      name: id,
      context: number(context),
      tokenizerSha256: null,
      tools: true,
      verify: false,
      vision: false,
      video: false,
      sound: false,
    };
  }

  #chosen(listed: unknown): JsonObject & { readonly id: string } {
    const cards = (Array.isArray(listed) ? listed : []).filter(
      (card): card is JsonObject & { id: string } => typeof (card as { id?: unknown } | null)?.id === "string",
    );
    // The transcriber of a server is no side, unless it is named.
    const speaking = cards.filter(({ transcribes }) => transcribes !== true);
    const match =
      this.requestedModel === null
        ? speaking.length === 1
          ? speaking[0]
          : undefined
        : cards.find(({ id }) => id === this.requestedModel);
    if (match !== undefined) return match;
    const names = cards.map(({ id }) => id).join(", ") || "no model";
    const problem =
      this.requestedModel === null
        ? `serves ${names}; choose one of them as far.model`
        : `does not serve '${this.requestedModel}', but ${names}`;
    throw new RequestError(`The far side ${problem}`, { code: "unknown_model", param: "far.model" });
  }
}

interface SeenPart {
  readonly type?: unknown;
  readonly image_url?: { readonly url?: unknown } | null;
  readonly video_url?: { readonly url?: unknown } | null;
}

const isOfPage = (part: SeenPart | null): boolean =>
  part?.type === "image" ||
  part?.type === "video" ||
  /^blob:/i.test(String(part?.image_url?.url ?? part?.video_url?.url));

/** With the bytes of pictures and videos that only the page has; the code is loaded with the first one. Throws RequestError. */
async function withSentPictures<B extends { readonly messages?: unknown }>(body: B): Promise<B> {
  const messages = (body.messages ?? []) as PlainParams["messages"];
  if (!messages.some(({ content }) => Array.isArray(content) && content.some(isOfPage))) return body;
  const { sentMessages } = await import("../../images/index.js");
  return { ...body, messages: await sentMessages(messages) };
}

/**
 * A server's chunk in OpenAI's form, with OpenAI's name for the finish reason if it has one, and the assistant's role.
 * Throws Unavailable for an invalid chunk.
 */
function chunkOf(value: JsonObject, model: string): ChatCompletionChunk {
  const { usage, id, created, transcripts, receipts } = value;
  const choices = value.choices ?? [];
  if (!Array.isArray(choices)) throw nonsense("choices is not a list");
  return {
    id: typeof id === "string" ? id : "",
    object: "chat.completion.chunk",
    created: number(created) ?? 0,
    model,
    choices: choices.map(choiceOf),
    usage: usageOf(usage),
    ...(isTranscripts(transcripts) && { transcripts }),
    // Whoever reads them checks them.
    ...(Array.isArray(receipts) && { receipts: receipts as SignedReceipt[] }),
  };
}

/** Not another server's field of that name. */
const isTranscripts = (value: unknown): value is SoundTranscript[] =>
  Array.isArray(value) && value.every((each: Partial<SoundTranscript> | null) => typeof each?.text === "string");

function choiceOf(value: unknown): ChatCompletionChunk["choices"][number] {
  const {
    index,
    delta,
    logprobs,
    finish_reason: end,
  } = object(value) as Partial<ChatCompletionChunk["choices"][number]>;
  const fields = Object.fromEntries(
    Object.entries(object(delta ?? {})).filter(([, field]) => field !== null),
  ) as ChatCompletionDelta;
  const {
    content = "",
    tool_calls: calls = [],
    reasoning,
  } = fields as { readonly content?: unknown; readonly tool_calls?: unknown; readonly reasoning?: string };
  // vLLM's newer name.
  const thought = fields.reasoning_content ?? reasoning ?? "";
  if (
    typeof content !== "string" ||
    typeof thought !== "string" ||
    !Array.isArray(calls) ||
    typeof (end ?? "") !== "string"
  )
    throw nonsense("a delta or a finish_reason is of another type");
  // vLLM and SGLang end an answer so if their server stops.
  if ((end as string) === "abort") throw new Unavailable("The far side broke off its answer");
  return {
    index: index ?? 0,
    delta: {
      ...fields,
      ...("role" in fields && { role: "assistant" }),
      ...(thought && { reasoning_content: thought }),
    },
    logprobs: Array.isArray(logprobs?.content) ? logprobs : null,
    finish_reason: end ? ((Object.hasOwn(ENDS, end) ? ENDS[end] : undefined) ?? end) : null,
  };
}

function object(value: unknown): object {
  if (typeof value !== "object" || value === null) throw nonsense("a choice is not an object");
  return value;
}

function nonsense(what: string): Unavailable {
  return new Unavailable(`The far side's answer is not in OpenAI's form: ${what}`, { retryable: false });
}

function usageOf(usage: unknown): NonNullable<ChatCompletionChunk["usage"]> | null {
  if (typeof usage !== "object" || usage === null) return null;
  const {
    prompt_tokens: prompt,
    completion_tokens: completion,
    prompt_tokens_details: details,
    completion_tokens_details: written,
    queue_ms: queue,
  } = usage as JsonObject;
  const reasoned = number((written as JsonObject | null | undefined)?.reasoning_tokens);
  const promptTokens = number(prompt) ?? 0;
  const completionTokens = number(completion) ?? 0;
  const cached = number((details as JsonObject | null | undefined)?.cached_tokens);
  const queueMs = number(queue);
  return {
    prompt_tokens: promptTokens,
    completion_tokens: completionTokens,
    total_tokens: promptTokens + completionTokens,
    ...(reasoned === null ? {} : { completion_tokens_details: { reasoning_tokens: reasoned } }),
    ...(cached === null ? {} : { prompt_tokens_details: { cached_tokens: cached } }),
    ...(queueMs === null ? {} : { queue_ms: queueMs }),
  };
}

function isIds(value: unknown): value is readonly number[] {
  return Array.isArray(value) && value.every((id) => Number.isInteger(id));
}

function number(value: unknown): number | null {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

// Reads a request to the router: OpenAI's parameters with labels and a pin. It separates what may be sent to a side
// from what only the router reads.

import type { Tooled } from "../api/functions.js";
import { asToolMessages, asTools } from "../api/functions.js";
import type { Given } from "../api/params.js";
import { isEmpty, isObject, readParams, refusal } from "../api/params.js";
import type {
  ChatCompletionCreateParamsBase,
  ChatCompletionCreateParamsNonStreaming,
  ChatCompletionCreateParamsStreaming,
  ChatCompletionMessageParam,
} from "../api/types.js";
import { RequestError } from "../errors.js";
import type { Stake } from "../shared/agent/stake.js";
import { typeOf } from "../shared/declared.js";
import { HYBRID_PARAMS } from "./hybrid_options.js";
import { textOf } from "./sides/sides.js";
import type { PlainParams } from "./sides/sides.js";
import type { Side } from "../shared/decision/decision.js";
import type { PrefixMessage } from "../shared/decision/prefix_memory.js";
import { requestTexts } from "../shared/decision/private_texts.js";
import type { Situation } from "../shared/decision/situation.js";

/** Of an answer; an application's objects, which JSON may not even write. */
const ALWAYS_LEFT_OUT: readonly string[] = ["parsed", "parsed_arguments", "index", "annotations"];

/** An estimate for a text whose tokens cannot be counted here. */
const BYTES_PER_TOKEN = 4;

/** The parameters of Hybrid besides OpenAI's. */
interface Routing {
  readonly messages: readonly (ChatCompletionMessageParam & {
    /** Labels of the policy; they are never sent. */
    readonly labels?: readonly string[] | null | undefined;
  })[];
  /** Labels of the policy; they are never sent. */
  readonly labels?: readonly string[] | null | undefined;
  /** Only this side may answer. */
  readonly pin?: Side | null | undefined;
  /** The language that the answering model must know, as the first part of a BCP 47 tag ("en"). */
  readonly language?: string | null | undefined;
  /**
   * The answer has the receipts of the sides that wrote it, and ``parts``: what each side received and wrote. Near must
   * be `receipted`, and far nearfar serve with --receipt-key.
   */
  readonly receipt?: boolean | null | undefined;
  /** Of a step of an agent: how much a right one is worth, and how much likelier far is right; see agent.js. */
  readonly stake?: Stake | null | undefined;
}

export type HybridParamsNonStreaming = Omit<ChatCompletionCreateParamsNonStreaming, "messages"> & Routing;
export type HybridParamsStreaming = Omit<ChatCompletionCreateParamsStreaming, "messages"> & Routing;
export type HybridParams = HybridParamsNonStreaming | HybridParamsStreaming;

export interface HybridRequest {
  readonly params: PlainParams;
  readonly answered: Tooled<object>["answered"];
  readonly streamed: boolean;
  readonly includeUsage: boolean;
  readonly signal: AbortSignal | undefined;
  /** Whether it has a recording of the page, which no server can receive. */
  readonly hasOwnSound: boolean;
  /** The part of a situation that is known from the request. */
  readonly properties: Pick<
    Situation,
    "messages" | "labels" | "texts" | "media" | "pin" | "max_tokens" | "tools" | "language" | "stake"
  >;
}

/** Throws RequestError for errors that are found before a side is asked. */
export function readRequest(raw: HybridParams): HybridRequest {
  const known = readParams(raw, HYBRID_PARAMS) as Given<
    Omit<ChatCompletionCreateParamsBase, "messages"> & Routing & { readonly stream?: boolean | undefined }
  >;
  const {
    labels = [],
    pin = null,
    language = null,
    stake = null,
    stream = false,
    n = 1,
    signal,
    stream_options: streamOptions,
    messages: labelled = [],
    ...given
  } = known;
  const { params: rest, answered } = asTools(given);
  if (n !== 1)
    throw new RequestError(`n is ${n}, but each answer is routed by itself; send n requests`, { param: "n" });
  for (const param of ["prompt_logprobs", "return_token_ids"] as const) {
    // Receipts have the tokens of each side.
    if (rest[param] !== undefined && rest[param] !== false && !(rest.receipt === true && param === "return_token_ids"))
      throw new RequestError(
        `${param} is not supported when two sides may answer, whose tokens may differ; remove it`,
        {
          param,
        },
      );
  }
  if (rest.max_tokens !== undefined && rest.max_completion_tokens !== undefined) {
    throw new RequestError("max_tokens and max_completion_tokens mean the same; use one of them", {
      param: "max_tokens",
    });
  }
  if (labelled.length === 0)
    throw new RequestError("messages is empty; give it at least one message", { param: "messages" });
  const read = labelled.map(readLabels);
  const messages = asToolMessages(read.map(({ message }) => message));
  const params = { ...rest, messages };
  const properties = {
    labels,
    pin,
    ...textsOf(
      params,
      read.map((each) => each.labels),
    ),
    max_tokens: rest.max_tokens ?? rest.max_completion_tokens ?? null,
    tools: (rest.tools ?? []).length > 0 && rest.tool_choice !== "none",
    language,
    stake,
  };
  return {
    params,
    answered,
    streamed: stream,
    includeUsage: streamOptions?.include_usage === true,
    signal,
    hasOwnSound: messages.some(hasPart("audio")),
    properties,
  };
}

/**
 * The request with the texts of its files, in which private patterns are searched, and which any side reads. Their code is
 * loaded with the first file. Throws RequestError for too many files.
 */
export async function withFileTexts(request: HybridRequest): Promise<HybridRequest> {
  if (!request.properties.media.some(({ kind }) => kind === "file")) return request;
  const { filesAsText } = await import("../attachments/index.js");
  const { messages, media } = filesAsText(request.params.messages);
  const read = withMessages(request, messages);
  return { ...read, properties: { ...read.properties, media: [...read.properties.media, ...media] } };
}

/** The request with other messages, which have the labels of its own. */
export function withMessages(request: HybridRequest, messages: PlainParams["messages"]): HybridRequest {
  const params = { ...request.params, messages };
  const labels = request.properties.messages.map((message) => message.labels);
  const properties = { ...request.properties, ...textsOf(params, labels) };
  return { ...request, params, properties, hasOwnSound: messages.some(hasPart("audio")) };
}

/** The conversation as the memory of a side's cache knows it. */
export function conversationOf({ properties, params }: HybridRequest): readonly PrefixMessage[] {
  return properties.messages.map(({ role, content }, index) => ({
    role,
    content: textWithCalls(content, params.messages[index]?.tool_calls),
  }));
}

export function textWithCalls(text: string, calls: readonly unknown[] = []): string {
  return calls.length === 0 ? text : `${text}${JSON.stringify(calls)}`;
}

/** Of a request whose tokens cannot be counted here. */
export function estimatedTokens({ properties }: HybridRequest): number {
  const bytes = properties.messages.reduce((sum, { content }) => sum + new TextEncoder().encode(content).length, 0);
  return Math.ceil(bytes / BYTES_PER_TOKEN);
}

function textsOf(
  params: PlainParams,
  labels: readonly (readonly string[])[],
): Pick<Situation, "messages" | "texts" | "media"> {
  const contents = params.messages.map(textOf);
  const messages = params.messages.map(({ content, ...message }) => ({
    ...message,
    content: Array.isArray(content) ? content.map(withoutObjects) : content,
  }));
  const { parts, texts, media } = requestTexts({ ...params, messages }, contents);
  const read = params.messages.map(({ role }, index) => ({
    role,
    content: contents[index] ?? "",
    labels: labels[index] ?? [],
    parts: parts[index] ?? [],
  }));
  return { messages: read, texts, media };
}

/** Whether a message has a part of this type. */
const hasPart =
  (type: string) =>
  ({ content }: ChatCompletionMessageParam): boolean =>
    Array.isArray(content) && content.some((part: { readonly type?: unknown } | null) => part?.type === type);

/** In a recording, an image or a video of the page, nothing is searched. */
function withoutObjects(part: Readonly<Record<string, unknown>> | null): object | null {
  const own = ["audio", "image", "video"].find((type) => part?.type === type);
  return own === undefined ? part : { ...part, [own]: undefined };
}

/** A message without its labels and as `asSent`, and the labels. */
function readLabels(
  { labels, ...message }: Routing["messages"][number],
  index: number,
): { readonly message: ChatCompletionMessageParam; readonly labels: readonly string[] } {
  const own = labels ?? [];
  const param = `messages[${index}].labels`;
  const fault = typeOf("string[]").fault(own, param);
  if (fault !== null) throw refusal(fault, param);
  return { message: asSent(message), labels: own };
}

/**
 * A message without what clients send back from an answer and no template reads: the content's parsed form, and empty
 * fields of other servers.
 */
function asSent(message: ChatCompletionMessageParam): ChatCompletionMessageParam {
  const { tool_calls: calls, function_call: older, ...rest } = message;
  const called = (given: unknown): unknown => without(given, ["parsed_arguments", "provider_specific_fields"]);
  const call = (given: unknown): unknown => {
    const kept = without(given, ["index", "provider_specific_fields"]);
    return isObject(kept) ? { ...kept, function: called(kept.function) } : kept;
  };
  return {
    ...(without(rest, [
      "parsed",
      "annotations",
      "audio",
      "thinking_blocks",
      "provider_specific_fields",
    ]) as typeof rest),
    ...(older !== undefined && { function_call: called(older) as typeof older }),
    ...(calls !== undefined && { tool_calls: (Array.isArray(calls) ? calls.map(call) : calls) as typeof calls }),
  };
}

/** An object without these fields, but a field of another server only if it is empty. */
function without(given: unknown, fields: readonly string[]): unknown {
  if (!isObject(given)) return given;
  const isLeftOut = (key: string, value: unknown): boolean =>
    fields.includes(key) && (ALWAYS_LEFT_OUT.includes(key) || isEmpty(value));
  return Object.fromEntries(Object.entries(given).filter(([key, value]) => !isLeftOut(key, value)));
}

// Converts WebLLM's requests into ours. Unsupported fields are errors that name the field.

import type {
  ChatCompletionCreateParamsStreaming,
  CompletionChunk,
  CompletionCreateParamsStreaming,
  ResponseFormat as OurFormat,
} from "../api/types.js";
import { RequestError, messageOf } from "../errors.js";
import type { ChatCompletionRequestBase, ExtraBody, ResponseFormat } from "./chat_types.js";
import type { CompletionCreateParamsBase } from "./completion_types.js";
import type { SamplingDefaults } from "./config.js";

type ExtraParams = Readonly<Record<string, unknown>>;

const STREAMED = { stream: true, stream_options: { include_usage: true } } as const;

/** Our parameters for each field of extra_body. Throws RequestError for an unsupported value. */
const EXTRA_BODY: { readonly [Field in keyof Required<ExtraBody>]: (value: unknown) => ExtraParams } = {
  enable_thinking: (value) => ({ enable_thinking: value }),
  enable_latency_breakdown: (value) =>
    value === false
      ? {}
      : refuse("enable_latency_breakdown", value, "sampling runs on the device and has no parts to time; leave it out"),
  resumable: (value) => refuse("resumable", value, "an interrupted answer cannot be resumed; leave it out"),
};

/** Always streams with usage, for the statistics of runtimeStatsText. Throws RequestError. */
export function chatParams(
  request: ChatCompletionRequestBase,
  defaults: SamplingDefaults,
): ChatCompletionCreateParamsStreaming {
  const { extra_body: extra, ignore_eos: ignoreEos, response_format: format, ...rest } = request;
  const mapped = format === undefined ? {} : { response_format: responseFormat(format) };
  return {
    ...defaults,
    ...defined(rest),
    ...extraParams(extra, ignoreEos),
    ...mapped,
    messages: request.messages,
    ...STREAMED,
  };
}

/**
 * As `chatParams`. In our API, ``logprobs`` of a text is the number of alternatives. ``echo`` is left to `withEcho`.
 * Throws RequestError.
 */
export function completionParams(
  request: CompletionCreateParamsBase,
  defaults: SamplingDefaults,
): CompletionCreateParamsStreaming {
  const { extra_body: extra, ignore_eos: ignoreEos, logprobs, top_logprobs: alternatives, echo, ...rest } = request;
  if (echo !== undefined && echo !== null && typeof echo !== "boolean")
    throw new RequestError("echo must be true or false", { param: "echo" });
  if (typeof alternatives === "number" && logprobs !== true)
    throw new RequestError("top_logprobs needs logprobs: true", { param: "top_logprobs" });
  const mapped = logprobs === true ? { logprobs: alternatives ?? 0 } : {};
  return {
    ...defaults,
    ...defined(rest),
    ...extraParams(extra, ignoreEos),
    ...mapped,
    prompt: request.prompt,
    ...STREAMED,
  };
}

/**
 * The chunks of a text that starts with its prompt. With an echo, OpenAI's API lists the tokens of the prompt, too;
 * WebLLM lists those of the answer only.
 */
export async function* withEcho(
  chunks: AsyncIterable<CompletionChunk>,
  { echo, prompt }: CompletionCreateParamsBase,
): AsyncGenerator<CompletionChunk, void, undefined> {
  const started = new Set<number>();
  for await (const chunk of chunks) {
    const choices = chunk.choices.map((choice) => {
      if (echo !== true || started.has(choice.index)) return choice;
      started.add(choice.index);
      return { ...choice, text: prompt + choice.text };
    });
    yield { ...chunk, choices };
  }
}

function extraParams(extra: ExtraBody = {}, ignoreEos: unknown = false): ExtraParams {
  if (ignoreEos === true)
    throw new RequestError("ignore_eos: true is not supported; an answer ends at the model's end token", {
      param: "ignore_eos",
    });
  const fields = Object.entries(extra).filter(([, value]) => (value as unknown) !== undefined && value !== null);
  const params = fields.map(([field, value]) => {
    if (!Object.hasOwn(EXTRA_BODY, field))
      throw new RequestError(`extra_body.${field} is not supported; supported: ${Object.keys(EXTRA_BODY).join(", ")}`, {
        param: field,
      });
    return EXTRA_BODY[field as keyof ExtraBody](value);
  });
  return Object.assign({}, ...params) as ExtraParams;
}

/** Converts a json_object with a schema to our json_schema. Throws RequestError if the schema is not JSON. */
function responseFormat({ type = "text", schema, ...rest }: ResponseFormat): OurFormat {
  if (schema === undefined) return { type, ...defined(rest) } as OurFormat;
  if (type !== "json_object")
    throw new RequestError(`response_format.schema needs type json_object, not ${type}`, { param: "response_format" });
  try {
    return {
      type: "json_schema",
      json_schema: { schema: (typeof schema === "string" ? JSON.parse(schema) : schema) as Record<string, unknown> },
    };
  } catch (error) {
    throw new RequestError(
      `response_format.schema must be the text of a JSON schema: ${messageOf(error)}`,
      { param: "response_format" },
      { cause: error },
    );
  }
}

/** Removes null and undefined, so that they do not hide a default. */
function defined<T extends object>(params: T): Partial<T> {
  return Object.fromEntries(
    Object.entries(params).filter(([, value]) => (value as unknown) !== undefined && value !== null),
  ) as Partial<T>;
}

function refuse(field: string, value: unknown, why: string): never {
  throw new RequestError(`extra_body.${field}: ${JSON.stringify(value)} is not supported: ${why}`, { param: field });
}

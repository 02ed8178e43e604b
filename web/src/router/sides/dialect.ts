// Dialects: a chat's parameters as the JSON that each kind of server accepts. Servers that have our extensions get them
// under their own names; for other servers they are errors, because no parameter is dropped silently. Parameters for
// OpenAI's own accounts are not sent.

import { accounts, common, extensions, extensions_if_set as extensionsIfSet } from "../../api/parameters.json";
import { RequestError } from "../../errors.js";
import type { JsonObject } from "./far_http.js";
import type { PlainParams } from "./sides.js";

/**
 * "openai": nothing beyond OpenAI's parameters. "vllm": vLLM 0.12 or newer. "sglang": SGLang 0.5 or its router.
 * "nearfar": `nearfar serve`.
 */
export type Dialect = "openai" | "vllm" | "sglang" | "nearfar";
export const DIALECTS: readonly Dialect[] = ["openai", "vllm", "sglang", "nearfar"];

/** The body of a chat: streamed, with usage. Throws RequestError for an extension that the dialect does not have. */
export function chatBody(params: PlainParams, model: string, dialect: Dialect): JsonObject {
  // Some servers reject priorities if they do not order requests by them.
  const dropped = dialect === "nearfar" ? accounts : [...accounts, "priority"];
  const entries = Object.entries(params).filter(([name, value]) => value !== undefined && !dropped.includes(name));
  const body: Record<string, unknown> = {
    ...Object.fromEntries(entries),
    model,
    stream: true,
    stream_options: { include_usage: true },
  };
  if (dialect === "nearfar") return body;
  if (body.receipt === true)
    throw new RequestError("receipt: only nearfar serve signs receipts; leave it out, or pin near", {
      param: "receipt",
    });
  delete body.receipt;
  // All servers know the older name; some ignore the newer one.
  const { max_completion_tokens: limit, ...rest } = body;
  // vLLM has a newer name for reasoning. OpenAI's own messages have none, and DeepSeek rejects its own reasoning.
  const messages = params.messages.map(({ reasoning_content: thought, reasoning = thought, ...message }) =>
    dialect === "vllm"
      ? { ...message, reasoning }
      : dialect === "sglang"
        ? { ...message, reasoning_content: reasoning }
        : message,
  );
  const plain = { ...rest, messages, ...(limit === undefined ? {} : { max_tokens: limit }) };
  return dialect === "vllm"
    ? { ...plain, ...vllmExtensions(params) }
    : dialect === "sglang"
      ? { ...plain, ...sglangExtensions(params) }
      : refuseExtensions(params, plain);
}

/** The body for our own server's /v1/completions that continues a chat after these tokens. */
export function tokensBody(params: PlainParams, model: string, promptIds: readonly number[]): JsonObject {
  const entries = Object.entries(chatBody(params, model, "nearfar")).filter(
    ([name]) => name in common || ["max_tokens", "receipt", "return_token_ids"].includes(name),
  );
  return { ...Object.fromEntries(entries), prompt: promptIds };
}

function vllmExtensions({
  response_format: format,
  continue_final_message: continues,
  enable_thinking: thinks,
  chat_template_kwargs: kwargs,
}: PlainParams): JsonObject {
  // vLLM starts a new turn by default, and the two options exclude each other.
  const next = continues === true ? { add_generation_prompt: false } : {};
  const turn =
    thinks === undefined
      ? next
      : { ...next, enable_thinking: undefined, chat_template_kwargs: { ...kwargs, enable_thinking: thinks } };
  const outputs =
    format?.type === "regex"
      ? { regex: format.pattern }
      : format?.type === "grammar"
        ? { grammar: format.grammar }
        : undefined;
  return outputs === undefined ? turn : { ...turn, response_format: undefined, structured_outputs: outputs };
}

/** SGLang's names; it drops unknown parameters silently. Throws RequestError for those that it does not have. */
function sglangExtensions(params: PlainParams): JsonObject {
  const { response_format: format, enable_thinking: thinks, chat_template_kwargs: kwargs } = params;
  const missing = SGLANG_LACKS.find((name) => (params[name] ?? false) !== false);
  if (missing !== undefined)
    throw new RequestError(`${missing}: SGLang has no such parameter for streamed chats; leave it out`, {
      param: missing,
    });
  return {
    ...(format?.type === "regex" && { response_format: undefined, regex: format.pattern }),
    ...(format?.type === "grammar" && { response_format: undefined, ebnf: format.grammar }),
    ...(params.include_stop_str_in_output === true && { no_stop_trim: true }),
    include_stop_str_in_output: undefined,
    // The names of the switch in the chat templates of DeepSeek and Kimi, and of Qwen, GLM and Nemotron.
    ...(thinks !== undefined && {
      enable_thinking: undefined,
      chat_template_kwargs: { ...kwargs, thinking: thinks, enable_thinking: thinks },
    }),
  };
}

const SGLANG_LACKS = ["prompt_logprobs", "return_token_ids", "thinking_token_budget"] as const;

function refuseExtensions(params: PlainParams, body: JsonObject): JsonObject {
  const type = params.response_format?.type;
  const given: Readonly<Record<string, unknown>> = params;
  const unsupported =
    extensions.find((name) => given[name] !== undefined) ??
    extensionsIfSet.find((name) => given[name] !== undefined && given[name] !== false) ??
    (type === "regex" || type === "grammar" ? "response_format" : undefined);
  if (unsupported !== undefined)
    throw new RequestError(
      `${unsupported}: the far side accepts only OpenAI's parameters; leave it out, or set far.dialect`,
      {
        param: unsupported,
      },
    );
  return body;
}

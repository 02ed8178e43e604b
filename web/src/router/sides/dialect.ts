// Dialects: a chat's parameters as the JSON that another kind of server takes. Our extensions go to servers that have them, under their names; to another
// they are an error, for what is asked for is not dropped in silence. What is for OpenAI's own accounts stays here.

import { RequestError } from "../../errors.js";
import type { JsonObject } from "./far_http.js";
import type { PlainParams } from "./sides.js";

/** "openai": nothing beyond OpenAI's parameters. "vllm": vLLM 0.12 or newer. "nearfar": `nearfar serve`. */
export type Dialect = "openai" | "vllm" | "nearfar";
export const DIALECTS: readonly Dialect[] = ["openai", "vllm", "nearfar"];

const OF_ACCOUNTS: readonly string[] = [
  "metadata",
  "store",
  "service_tier",
  "safety_identifier",
  "prompt_cache_key",
  "prompt_cache_retention",
  "prediction",
  "modalities",
] satisfies (keyof PlainParams)[];
const OF_THINKING = [
  "enable_thinking",
  "thinking_token_budget",
  "chat_template_kwargs",
] as const satisfies (keyof PlainParams)[];
const EXTENSIONS = [
  "top_k",
  "min_p",
  "repetition_penalty",
  "continue_final_message",
  ...OF_THINKING,
] as const satisfies (keyof PlainParams)[];

/** What to post for a chat: streamed, with usage. Throws RequestError for an extension that the dialect lacks. */
export function chatBody(params: PlainParams, model: string, dialect: Dialect): JsonObject {
  // Some servers refuse priorities where they do not order by them.
  const dropped = dialect === "nearfar" ? OF_ACCOUNTS : [...OF_ACCOUNTS, "priority"];
  const kept = Object.entries(params).filter(([name, value]) => value !== undefined && !dropped.includes(name));
  const body: Record<string, unknown> = {
    ...Object.fromEntries(kept),
    model,
    stream: true,
    stream_options: { include_usage: true },
  };
  if (dialect === "nearfar") return body;
  // All servers know the older name; some ignore the newer one.
  const { max_completion_tokens: limit, ...rest } = body;
  // vLLM has a newer name for reasoning. OpenAI's own messages have none, and DeepSeek refuses what it wrote itself.
  const messages = params.messages.map(({ reasoning_content: thought, reasoning = thought, ...message }) =>
    dialect === "vllm" ? { ...message, reasoning } : message,
  );
  const plain = { ...rest, messages, ...(limit === undefined ? {} : { max_tokens: limit }) };
  return dialect === "vllm" ? { ...plain, ...vllmExtensions(params) } : refuseExtensions(params, plain);
}

const OF_CHATS: readonly string[] = [
  "messages",
  "max_completion_tokens",
  "tools",
  "tool_choice",
  "parallel_tool_calls",
  "response_format",
  "continue_final_message",
] satisfies (keyof PlainParams)[];

/**
 * Whether a chat's answer can be gone on with as token ids: no calls are read from it then, no format holds it, nothing bounds its reasoning, and its prompt
 * depends on the messages alone.
 */
export function continuesAsTokens(params: PlainParams): boolean {
  const { response_format: format, tools, logprobs, continue_final_message: continues } = params;
  if ([params.reasoning_effort, ...OF_THINKING.map((name) => params[name])].some((given) => given !== undefined))
    return false;
  return (
    (format === undefined || format.type === "text") &&
    (tools ?? []).length === 0 &&
    logprobs !== true &&
    continues !== true
  );
}

/** What to post to our own server's /v1/completions for a chat that goes on after these tokens. */
export function tokensBody(params: PlainParams, model: string, promptIds: readonly number[]): JsonObject {
  const kept = Object.entries(chatBody(params, model, "nearfar")).filter(([name]) => !OF_CHATS.includes(name));
  return { ...Object.fromEntries(kept), prompt: promptIds };
}

function vllmExtensions({
  response_format: format,
  continue_final_message: continues,
  enable_thinking: thinks,
  chat_template_kwargs: kwargs,
}: PlainParams): JsonObject {
  // vLLM starts a new turn unless it is told not to, and the two exclude each other.
  const next = continues === true ? { add_generation_prompt: false } : {};
  const turn =
    thinks === undefined
      ? next
      : { ...next, enable_thinking: undefined, chat_template_kwargs: { ...kwargs, enable_thinking: thinks } };
  if (format?.type === "regex")
    return { ...turn, response_format: undefined, structured_outputs: { regex: format.pattern } };
  if (format?.type === "grammar")
    return { ...turn, response_format: undefined, structured_outputs: { grammar: format.grammar } };
  return turn;
}

function refuseExtensions(params: PlainParams, body: JsonObject): JsonObject {
  const type = params.response_format?.type;
  const given =
    EXTENSIONS.find((name) => params[name] !== undefined && (params[name] !== false || name === "enable_thinking")) ??
    (type === "regex" || type === "grammar" ? "response_format" : undefined);
  if (given !== undefined)
    throw new RequestError(`${given}: the far side takes OpenAI's parameters only; leave it out, or set far.dialect`, {
      param: given,
    });
  return body;
}

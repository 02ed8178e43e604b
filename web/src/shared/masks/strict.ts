// What of a chat may leave the device if the policy's masks are strict: the fields that are listed here, and nothing
// else. A field that changes no answer is left out, ids are replaced, and any other field keeps the request on the
// device. All that leaves is listed for whoever confirms it: nothing in a request is too unimportant to be shown.

import type { MaskedText } from "../../api/replies.js";

type Value = Readonly<Record<string, unknown>>;
/** A pattern: the texts that are listed. "out": left out. "id": an id of a call, which gets another name. */
type Shape = RegExp | "text" | "number" | "flag" | "json" | "id" | "out" | Keys | readonly [Shape, Shape];
type Keys = { readonly [key in string]: Shape };

const FUNCTION_TYPE = /^function$/;
const CALL = { name: "text", arguments: "text" } as const;
const CONTENT = ["text", { type: /^(?:text|refusal)$/, text: "text", refusal: "text" }] as const;
const NAMED = { type: FUNCTION_TYPE, function: { name: "text" } } as const;
const SHAPES: Keys = {
  messages: {
    role: /^(?:system|developer|user|assistant|tool|function)$/,
    content: CONTENT,
    reasoning_content: "text",
    reasoning: "text",
    refusal: "text",
    tool_calls: { id: "id", type: FUNCTION_TYPE, index: "out", function: CALL },
    tool_call_id: "id",
    function_call: CALL,
    labels: "out",
    annotations: "out",
  },
  tools: {
    type: FUNCTION_TYPE,
    function: { name: "text", description: "text", parameters: "json", strict: "flag" },
  },
  tool_choice: [/^(?:none|auto|required)$/, NAMED],
  parallel_tool_calls: "flag",
  response_format: {
    type: /^(?:text|json_object|json_schema)$/,
    json_schema: { name: "text", description: "text", schema: "json", strict: "flag" },
  },
  stop: "text",
  temperature: "number",
  top_p: "number",
  top_k: "number",
  min_p: "number",
  seed: "number",
  frequency_penalty: "number",
  presence_penalty: "number",
  repetition_penalty: "number",
  max_tokens: "number",
  max_completion_tokens: "number",
  min_tokens: "number",
  thinking_token_budget: "number",
  enable_thinking: "flag",
  continue_final_message: "flag",
  ignore_eos: "flag",
  logprobs: "flag",
  receipt: "flag",
  return_token_ids: "flag",
  reasoning_effort: /^(?:none|minimal|low|medium|high|xhigh|max)$/,
  verbosity: /^(?:low|medium|high)$/,
  // They concern accounts, speed or the connection alone.
  user: "out",
  metadata: "out",
  store: "out",
  service_tier: "out",
  safety_identifier: "out",
  prompt_cache_key: "out",
  prompt_cache_retention: "out",
  prediction: "out",
  modalities: "out",
  priority: "out",
  prompt_name: "out",
};

export interface StrictRequest {
  /** The request with listed fields alone. */
  readonly params: Value;
  /** The path of the first field that keeps the request on the device; else null. */
  readonly refused: string | null;
}

/** The part of a request that may leave. A request of this part is returned as it is. */
export function strictRequest(params: Value): StrictRequest {
  const ids = new Map<string, string>();
  let refused: string | null = null;
  const listed = (value: unknown, shape: Shape, path: string): unknown => {
    if (value === null || value === undefined) return undefined;
    if (shape === "json") return value;
    if (Array.isArray(value)) return value.map((item, index) => listed(item, shape, `${path}[${index}]`));
    // A value is either an object or one of the other kind.
    const kind = Array.isArray(shape) ? (shape as readonly Shape[])[Number(typeof value === "object")] : shape;
    if (kind === "id" && typeof value === "string") {
      // Nine letters and digits, because some chat templates require that.
      const id = ids.get(value) ?? `call${String(ids.size + 1).padStart(5, "0")}`;
      ids.set(value, id);
      return id;
    }
    const fits =
      (kind === "text" && typeof value === "string") ||
      (kind === "number" && typeof value === "number") ||
      (kind === "flag" && typeof value === "boolean") ||
      (kind instanceof RegExp && typeof value === "string" && kind.test(value));
    if (fits) return value;
    if (typeof kind !== "object" || kind instanceof RegExp || typeof value !== "object") {
      refused ??= path;
      return undefined;
    }
    const keys = kind as Keys;
    const kept: Record<string, unknown> = {};
    for (const [key, inner] of Object.entries(value)) {
      const own = Object.hasOwn(keys, key) ? keys[key] : undefined;
      const at = path === "" ? key : `${path}.${key}`;
      if (own === undefined && inner !== undefined && inner !== null) refused ??= at;
      if (own === undefined || own === "out") continue;
      const now = listed(inner, own, at);
      if (now !== undefined) kept[key] = now;
    }
    return kept;
  };
  return { params: listed(params, SHAPES, "") as Value, refused };
}

/**
 * All values of a request, of which each is a text or JSON: those of messages one by one, those of every other field as
 * a whole.
 */
export function leavingTexts({ messages = [], ...rest }: Value): readonly MaskedText[] {
  const texts: MaskedText[] = [];
  const add = (value: unknown, path: string): void => {
    if (value !== undefined) texts.push({ path, text: typeof value === "string" ? value : JSON.stringify(value) });
  };
  const leaves = (value: unknown, path: string): void => {
    if (Array.isArray(value)) for (const [index, item] of value.entries()) leaves(item, `${path}[${index}]`);
    else if (typeof value === "object" && value !== null)
      for (const [key, inner] of Object.entries(value)) leaves(inner, `${path}.${key}`);
    else add(value, path);
  };
  leaves(messages, "messages");
  for (const [key, value] of Object.entries(rest)) add(value, key);
  return texts;
}

/** The texts of a request that are not masked, which must have nothing private: all but those of its messages. */
export function unmaskedTexts({ messages = [], ...rest }: Value): readonly MaskedText[] {
  const names = leavingTexts({ messages }).filter(({ path }) => /\.function(?:_call)?\.name$/.test(path));
  return [...names, ...leavingTexts(rest)];
}

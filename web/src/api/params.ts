// Validates parameters and options from outside: each must be in a table and within its range. Unknown parameters are
// errors and are never ignored.

import { RequestError } from "../errors.js";
import { EFFORT_TOKENS } from "../text/thinking.js";

export interface Check {
  /** For messages: "it must be ...". */
  readonly range: string;
  holds(value: unknown): boolean;
}

export type Checks = Readonly<Record<string, Check>>;

/** Parameters without those that are undefined or null. */
export type Given<T> = { readonly [K in keyof T]?: Exclude<T[K], null | undefined> | undefined };

export const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);
/** Whether a value is null, empty, or an object of only such values, as clients send it back from an answer. */
export function isEmpty(value: unknown): boolean {
  return (value ?? "") === "" || (typeof value === "object" && Object.values(Object(value) as object).every(isEmpty));
}

export const check = (range: string, holds: (value: unknown) => boolean): Check => ({ range, holds });
const number = (least: number, most: number): Check =>
  check(
    most === Infinity ? `a number of at least ${least}` : `a number from ${least} to ${most}`,
    (value) => typeof value === "number" && Number.isFinite(value) && value >= least && value <= most,
  );
export const integer = (least: number, most: number): Check =>
  check(
    most === Infinity ? `an integer of at least ${least}` : `an integer from ${least} to ${most}`,
    (value) => Number.isInteger(value) && (value as number) >= least && (value as number) <= most,
  );
export const boolean = check("true or false", (value) => typeof value === "boolean");
export const list = check("a list", Array.isArray);
export const object = check("an object", isObject);
export const anything = check("anything", () => true);
export const text = check("a string", (value) => typeof value === "string");
export const only = (...values: readonly (string | boolean)[]): Check =>
  check(values.map((value) => JSON.stringify(value)).join(" or "), (value) =>
    values.includes(value as string | boolean),
  );

export const signal = check("an AbortSignal", (value) => value instanceof AbortSignal);

const COMMON: Checks = {
  temperature: number(0, 2),
  top_p: check("a number above 0 and at most 1", (value) => typeof value === "number" && value > 0 && value <= 1),
  n: integer(1, 128),
  max_tokens: integer(1, Infinity),
  stop: check("a string, or at most 4 strings, none of them empty", (value) => {
    const stops: readonly unknown[] = Array.isArray(value) ? value : [value];
    return stops.length <= 4 && stops.every((stop) => typeof stop === "string" && stop !== "");
  }),
  seed: check("an integer", Number.isSafeInteger),
  frequency_penalty: number(-2, 2),
  presence_penalty: number(-2, 2),
  logit_bias: check(
    "an object from token ids to numbers from -100 to 100",
    (value) =>
      isObject(value) && Object.entries(value).every(([id, bias]) => /^\d+$/.test(id) && number(-100, 100).holds(bias)),
  ),
  stream: boolean,
  stream_options: check(
    "an object with include_usage true or false",
    (value) =>
      isObject(value) &&
      Object.entries(value).every(
        ([key, option]) =>
          (key === "include_usage" && typeof option === "boolean") ||
          (key === "include_obfuscation" && option === false),
      ),
  ),
  top_k: integer(-1, Infinity),
  min_p: number(0, 1),
  repetition_penalty: check(
    "a number above 0",
    (value) => typeof value === "number" && Number.isFinite(value) && value > 0,
  ),
  priority: check("a number", Number.isFinite),
  prompt_logprobs: integer(0, 20),
  return_token_ids: boolean,
  skip_special_tokens: boolean,
  include_stop_str_in_output: boolean,
  signal,
};

/** Accepted without effect: the engine does what they request in any case, or they concern OpenAI's own servers. */
const HARMLESS: Checks = {
  model: text,
  user: text,
  metadata: object,
  store: only(false),
  service_tier: only("auto", "default"),
  safety_identifier: text,
  prompt_cache_key: text,
  prompt_cache_retention: text,
  prediction: object,
  modalities: check('["text"]', (value) => Array.isArray(value) && value.length === 1 && value[0] === "text"),
};

export const CHAT_PARAMS: Checks = {
  messages: list,
  max_completion_tokens: integer(1, Infinity),
  logprobs: boolean,
  top_logprobs: integer(0, 20),
  response_format: object,
  tools: list,
  tool_choice: check(
    '"none", "auto", "required" or an object',
    (value) => isObject(value) || only("none", "auto", "required").holds(value),
  ),
  parallel_tool_calls: boolean,
  functions: list,
  function_call: check(
    '"none", "auto" or an object with a name',
    (value) => (isObject(value) && text.holds(value.name)) || only("none", "auto").holds(value),
  ),
  continue_final_message: boolean,
  chat_template_kwargs: object,
  enable_thinking: boolean,
  reasoning_effort: only(...Object.keys(EFFORT_TOKENS)),
  thinking_token_budget: integer(0, Infinity),
  ...COMMON,
  ...HARMLESS,
};

export const COMPLETION_PARAMS: Checks = {
  prompt: check("a string, strings, token ids, or lists of token ids", isPrompt),
  logprobs: integer(0, 20),
  echo: boolean,
  split_special_tokens: boolean,
  response_format: object,
  ...COMMON,
  best_of: integer(1, 128),
  suffix: only(""),
  max_tokens: integer(0, Infinity),
  model: text,
  user: text,
};

/** Throws RequestError for an unknown parameter, and for one that is out of its range. */
export function readParams<T extends object>(params: T, checks: Checks): Given<T> {
  if (!isObject(params)) throw new RequestError(`The parameters are ${shown(params)}, they must be an object`);
  const present = Object.entries(params).filter(([, value]) => value !== undefined && value !== null);
  for (const [name, value] of present) {
    const check = Object.hasOwn(checks, name) ? checks[name] : undefined;
    if (check === undefined)
      throw new RequestError(`'${name}' is not supported; supported: ${Object.keys(checks).join(", ")}`, {
        param: name,
      });
    if (!check.holds(value))
      throw new RequestError(`${name} is ${shown(value)}, it must be ${check.range}`, { param: name });
  }
  const given = Object.fromEntries(present);
  if (given.stream_options !== undefined && given.stream !== true)
    throw new RequestError("stream_options applies to streamed answers only; set stream to true", {
      param: "stream_options",
    });
  return given as Given<T>;
}

/** A value as messages show it: its JSON, shortened. */
export function shown(value: unknown): string {
  const json = JSON.stringify(value) as string | undefined;
  return json === undefined ? typeof value : json.length > 80 ? `${json.slice(0, 80)}…` : json;
}

export function isStrings(value: unknown): value is readonly string[] {
  return Array.isArray(value) && value.every((part) => typeof part === "string");
}

function isPrompt(value: unknown): boolean {
  if (typeof value === "string") return true;
  if (!Array.isArray(value) || value.length === 0) return false;
  const ids = (part: unknown): boolean => Array.isArray(part) && part.every(Number.isInteger);
  return value.every((part) => typeof part === "string") || ids(value) || value.every(ids);
}

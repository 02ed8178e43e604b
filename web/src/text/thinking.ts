// Reads how a chat request controls reasoning: variables of the chat template, and a budget in tokens. See
// server_fallback/text/thinking.py.

import type { ChatParams } from "../api/parameters.js";
import { RequestError } from "../errors.js";
import type { Reasoning } from "./reasoning.js";

/** The most tokens of reasoning; 0 switches it off. */
export const EFFORT_TOKENS = {
  none: 0,
  minimal: 0,
  low: 1024,
  medium: 8192,
  high: 24_576,
  xhigh: Infinity,
  max: Infinity,
};

export type ThinkingParams = Pick<
  ChatParams,
  "reasoning_effort" | "enable_thinking" | "thinking_token_budget" | "chat_template_kwargs"
>;

/** The reasoning features of a model and its chat template. */
export interface ThinkingModel {
  /** Null for a model that does not reason. */
  readonly reasoning: Reasoning | null;
  /** Whether its chat template has the variable enable_thinking. */
  readonly canSwitch: boolean;
}

export interface Thinking {
  readonly variables: Readonly<Record<string, unknown>>;
  /** The most tokens of reasoning. */
  readonly budget: number | undefined;
}

/** Throws RequestError for a parameter that the model lacks. */
export function readThinking(params: ThinkingParams, { canSwitch, reasoning }: ThinkingModel): Thinking {
  const { reasoning_effort: effort, enable_thinking: enabled, thinking_token_budget: given } = params;
  const variables: Record<string, unknown> = { ...params.chat_template_kwargs };
  let budget = given ?? undefined;
  if (budget !== undefined && reasoning === null) throw lacking("thinking_token_budget");
  if (enabled !== undefined) {
    if (!canSwitch || "enable_thinking" in variables) throw lacking("enable_thinking");
    variables.enable_thinking = enabled;
  }
  if (effort) {
    const tokens = EFFORT_TOKENS[effort];
    variables.enable_thinking ??= tokens > 0;
    variables.reasoning_effort = effort;
    if (tokens < Infinity && !(canSwitch && tokens === 0)) budget ??= tokens;
  }
  return { variables, budget };
}

function lacking(param: string): RequestError {
  return new RequestError(`${param} has no effect on this model, or chat_template_kwargs sets it too; leave it out`, {
    param,
  });
}

// Continuation: whether an answer can be continued as token ids, after those that near has made of the prompt and of its
// text.

import { mediaOf } from "../decision/media.js";

/** The parameters of a chat that matter here; null is the same as leaving one out. */
export interface ContinuedParams {
  readonly response_format?: { readonly type: string } | null | undefined;
  readonly tools?: readonly unknown[] | null | undefined;
  readonly logprobs?: boolean | null | undefined;
  readonly continue_final_message?: boolean | null | undefined;
  readonly reasoning_effort?: unknown;
  readonly thinking_token_budget?: unknown;
  readonly enable_thinking?: unknown;
  readonly chat_template_kwargs?: unknown;
  readonly verbosity?: unknown;
  readonly messages?: readonly { readonly content?: unknown }[] | undefined;
}

/**
 * No tool calls are parsed from it, it has no format and no log-probabilities, and its reasoning has no bound. Of a
 * picture, token ids have nothing but its length.
 */
export function continuesAsTokens(params: ContinuedParams): boolean {
  return (
    (params.response_format ?? { type: "text" }).type === "text" &&
    (params.tools ?? []).length === 0 &&
    params.logprobs !== true &&
    params.continue_final_message !== true &&
    mediaOf(params.messages ?? [], []).length === 0 &&
    (params.reasoning_effort ?? params.thinking_token_budget ?? null) === null
  );
}

/** Whether the prompt depends on more than the messages, of which near counts the tokens. */
export function setsTemplateVariables(params: ContinuedParams): boolean {
  const { chat_template_kwargs: variables, enable_thinking: thinks, reasoning_effort: effort, verbosity } = params;
  return (variables ?? thinks ?? effort ?? verbosity ?? null) !== null;
}

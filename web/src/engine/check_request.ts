// Checks whether a model can answer a request. A RequestError states what is wrong.

import { RequestError } from "../errors.js";
import { isA, typeOf } from "../shared/declared.js";
import { SAMPLING } from "../shared/sampling.js";
import type { TokenRequest } from "./request.js";
import type { SchedulerConfig } from "./scheduler.js";

/** The maximum number of alternatives with log-probabilities. */
export const MOST_ALTERNATIVES = 20;

/** Throws RequestError. */
export function checkRequest(
  request: TokenRequest,
  vocabSize: number,
  { context, states = 0 }: Pick<SchedulerConfig, "context" | "states">,
): void {
  checkPrompt(request, vocabSize, context);
  const { maxTokens, sampling = {}, logprobs, promptLogprobs, stopTokenIds = [], priority, whenFull } = request;
  const alternatives = `integer 0..${MOST_ALTERNATIVES}`;
  check("maxTokens", maxTokens, "integer 1..");
  check("logprobs", logprobs, alternatives);
  check("promptLogprobs", promptLogprobs, "integer 0..");
  check("promptAlternatives", request.promptAlternatives, alternatives);
  check("priority", priority, "number");
  const ids = `integer 0..${vocabSize - 1}`;
  const range = `token ids from 0 to ${vocabSize - 1}`;
  for (const id of stopTokenIds) check("stopTokenIds", id, ids, range);
  const { tokens = [], end } = request.begun ?? {};
  for (const { tokenId, alternatives } of end?.endToken ? [...tokens, end.endToken] : tokens)
    for (const id of [tokenId, ...alternatives.map((each) => each.tokenId)]) check("begun", id, ids, range);
  const half = `integer 0..${context >> 1}`;
  if (typeof whenFull === "object") {
    check("whenFull.keep", whenFull.keep, half, `an integer from 0 to half of the context, ${context >> 1}`);
    if (states > 0)
      throw new RequestError(
        "whenFull drops old tokens, which the states of this model's recurrent layers cannot; use 'stop'",
        { param: "whenFull" },
      );
  }
  for (const [name, { type }] of Object.entries(SAMPLING)) check(name, sampling[name as keyof typeof SAMPLING], type);
  for (const [id, bias] of sampling.logitBias ?? []) {
    check("logitBias", id, ids, `for ${range}`);
    check("logitBias", bias, "number", "of numbers");
  }
}

function checkPrompt({ promptIds, whenFull }: TokenRequest, vocabSize: number, context: number): void {
  if (promptIds.length === 0)
    throw new RequestError("The prompt is empty; give it at least one token", { param: "promptIds" });
  if (promptIds.length > context && typeof whenFull !== "object") {
    throw new RequestError(
      `This model's maximum context length is ${context} tokens. However, the prompt has ${promptIds.length} tokens; ` +
        "shorten it, drop old tokens (whenFull), or compile with a longer context",
      { param: "promptIds", tokens: promptIds.length, context },
    );
  }
  const index = promptIds.findIndex((id) => !Number.isInteger(id) || id < 0 || id >= vocabSize);
  if (index >= 0) {
    throw new RequestError(
      `Token ${index} of the prompt is ${String(promptIds[index])}; token ids of this model are 0 to ${vocabSize - 1}`,
      {
        param: "promptIds",
        index,
      },
    );
  }
}

function check(option: string, value: number | undefined, type: string, range = typeOf(type).expected): void {
  if (value !== undefined && !isA(type, value))
    throw new RequestError(`${option} is ${value}, it must be ${range}`, { param: option });
}

// Checks whether a model can answer a request. A RequestError states what is wrong.

import { RequestError } from "../errors.js";
import type { TokenRequest } from "./request.js";

/** The maximum number of alternatives with log-probabilities. */
export const MOST_ALTERNATIVES = 20;

/** Throws RequestError. */
export function checkRequest(request: TokenRequest, vocabSize: number, context: number): void {
  checkPrompt(request, vocabSize, context);
  const { maxTokens, sampling = {}, logprobs, promptLogprobs, stopTokenIds = [], priority, whenFull } = request;
  check("maxTokens", maxTokens, isInteger(1), "an integer of at least 1");
  check("logprobs", logprobs, isInteger(0, MOST_ALTERNATIVES), `an integer from 0 to ${MOST_ALTERNATIVES}`);
  check("promptLogprobs", promptLogprobs, isInteger(0), "an integer of at least 0");
  const alternatives = `an integer from 0 to ${MOST_ALTERNATIVES}`;
  check("promptAlternatives", request.promptAlternatives, isInteger(0, MOST_ALTERNATIVES), alternatives);
  check("priority", priority, Number.isFinite, "a number");
  for (const id of stopTokenIds)
    check("stopTokenIds", id, isInteger(0, vocabSize - 1), `token ids from 0 to ${vocabSize - 1}`);
  if (typeof whenFull === "object")
    check(
      "whenFull.keep",
      whenFull.keep,
      isInteger(0, context >> 1),
      `an integer from 0 to half of the context, ${context >> 1}`,
    );
  check("temperature", sampling.temperature, isFrom(0), "0 or more");
  check("topK", sampling.topK, isInteger(0), "an integer of at least 0");
  check("topP", sampling.topP, (value) => value > 0 && value <= 1, "above 0 and at most 1");
  check("minP", sampling.minP, (value) => value >= 0 && value <= 1, "from 0 to 1");
  check("repetitionPenalty", sampling.repetitionPenalty, (value) => value > 0 && Number.isFinite(value), "above 0");
  check("frequencyPenalty", sampling.frequencyPenalty, Number.isFinite, "a number");
  check("presencePenalty", sampling.presencePenalty, Number.isFinite, "a number");
  check("seed", sampling.seed, isInteger(0, 2 ** 32 - 1), "an integer from 0 to 4294967295");
  for (const [id, bias] of sampling.logitBias ?? []) {
    check("logitBias", id, isInteger(0, vocabSize - 1), `for token ids from 0 to ${vocabSize - 1}`);
    check("logitBias", bias, Number.isFinite, "of numbers");
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

function check(option: string, value: number | undefined, holds: (value: number) => boolean, range: string): void {
  if (value !== undefined && !holds(value))
    throw new RequestError(`${option} is ${value}, it must be ${range}`, { param: option });
}

function isInteger(least: number, most = Infinity): (value: number) => boolean {
  return (value) => Number.isInteger(value) && value >= least && value <= most;
}

function isFrom(least: number): (value: number) => boolean {
  return (value) => Number.isFinite(value) && value >= least;
}

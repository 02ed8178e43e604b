// Requests in a queue: the generation loop has room for one sequence, so each request waits until those before it have ended.

import { RequestError } from "../errors.js";
import type { FinishReason, TokenOptions } from "./generate_tokens.js";
import type { Completion, GeneratedToken, SamplingOptions, TokenRequest, TokenSource } from "./request.js";

type Generate = (promptIds: readonly number[], options: TokenOptions) => AsyncGenerator<number, FinishReason, undefined>;

const NEUTRAL: Readonly<Record<Exclude<keyof SamplingOptions, "temperature" | "seed" | "logitBias">, number>> = {
  topK: 0,
  topP: 1,
  minP: 0,
  repetitionPenalty: 1,
  frequencyPenalty: 0,
  presencePenalty: 0,
};

export class OneAtATime implements TokenSource {
  #last: Promise<unknown> = Promise.resolve();

  constructor(private readonly generate: Generate) {}

  async *generateTokens(request: TokenRequest): AsyncGenerator<GeneratedToken, Completion, undefined> {
    requireSupported(request);
    const { promptIds, maxTokens, signal, sampling: { temperature, seed } = {} } = request;
    const before = this.#last;
    let end: () => void = () => undefined;
    this.#last = new Promise<void>((resolve) => (end = resolve));
    let completionTokens = 0;
    try {
      await before;
      const tokens = this.generate(promptIds, { maxTokens, signal, temperature, seed });
      try {
        for (;;) {
          const { done, value } = await tokens.next();
          if (done === true) return { finishReason: value, promptTokens: promptIds.length, cachedTokens: 0, completionTokens };
          completionTokens++;
          yield { tokenId: value, logprob: null, alternatives: [] };
        }
      } finally {
        await tokens.return("stop");
      }
    } finally {
      // The next in line waits for this one, and this one for those before it.
      void before.then(end);
    }
  }
}

function requireSupported({ sampling = {}, logprobs, stopTokenIds = [], constraint }: TokenRequest): void {
  const changed = Object.entries(NEUTRAL).find(([name, neutral]) => (sampling[name as keyof typeof NEUTRAL] ?? neutral) !== neutral)?.[0];
  const others = { logitBias: (sampling.logitBias?.size ?? 0) > 0, logprobs: logprobs !== undefined, stopTokenIds: stopTokenIds.length > 0, constraint };
  const found = changed ?? Object.entries(others).find(([, given]) => given !== undefined && given !== false)?.[0];
  if (found === undefined) return;
  constraint?.dispose();
  throw new RequestError(`this engine cannot do ${found} yet; it samples by temperature and seed`, { param: found });
}

// Usage: the tokens of an answer that several parts make up, each written by a side.

/** As servers report it of a part. */
export interface Usage {
  readonly prompt_tokens: number;
  readonly completion_tokens: number;
  readonly total_tokens: number;
  readonly prompt_tokens_details?: { readonly cached_tokens: number };
  readonly queue_ms?: number;
}

/**
 * The usage of the complete answer, as the side of its last part counts: what that part continued was in its prompt.
 * ``counted``: the tokens of the last part, if it has no ``usage``; ``earlier``: those before it that are shown.
 */
export function totalUsage(usage: Usage | null, counted: number, earlier: number): Usage {
  const last = usage ?? { prompt_tokens: 0, completion_tokens: counted };
  const prompt = Math.max(0, last.prompt_tokens - earlier);
  const completion = last.completion_tokens + earlier;
  const cached = usage?.prompt_tokens_details?.cached_tokens;
  return {
    ...last,
    prompt_tokens: prompt,
    completion_tokens: completion,
    total_tokens: prompt + completion,
    ...(cached !== undefined && { prompt_tokens_details: { cached_tokens: Math.min(cached, prompt) } }),
  };
}

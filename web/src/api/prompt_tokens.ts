// What an answer reports of its prompt's tokens: their log-probabilities, in vLLM's form and in OpenAI's for an echo.

import type { AnswerEnd, GeneratedToken, TokenRequest, TokenSource } from "../engine/request.js";
import { TextStream } from "../text/text_stream.js";
import type { TextCodec } from "./model.js";
import type { CompletionLogprobs, PromptLogprobs } from "./types.js";

/**
 * ``tokens`` are all of a prompt but the first, which has no log-probability. Each comes with the ``most`` likely ones.
 * The rank counts from 1; it is null for a token that is not among the 20 likeliest, which the device lists.
 */
export function promptLogprobs(codec: TextCodec, tokens: readonly GeneratedToken[], most: number): PromptLogprobs {
  const listed = tokens.map(({ tokenId, logprob, alternatives }) => {
    const values = new Map([[tokenId, logprob ?? 0]]);
    for (const each of alternatives.slice(0, most)) values.set(each.tokenId, each.logprob);
    const rank = (id: number): number | null => 1 + alternatives.findIndex((each) => each.tokenId === id) || null;
    return Object.fromEntries(
      Array.from(values, ([id, value]) => [id, { logprob: value, rank: rank(id), decoded_token: nameOf(codec, id) }]),
    );
  });
  return [null, ...listed];
}

/** The tokens of an echoed prompt, whose ``text`` starts the answer. */
export function echoLogprobs(
  codec: TextCodec,
  promptIds: readonly number[],
  tokens: readonly GeneratedToken[],
  text: string,
  most: number,
): CompletionLogprobs {
  const stream = new TextStream(codec);
  const length = Array.from(text).length;
  let offset = 0;
  const offsets = promptIds.map((id) => {
    // A text may decode to a longer one, such as one with a space before it.
    const own = Math.min(offset, length);
    offset += Array.from(stream.feed(id)).length;
    return own;
  });
  return {
    tokens: promptIds.map((id) => nameOf(codec, id)),
    token_logprobs: [null, ...tokens.map(({ logprob }) => logprob)],
    top_logprobs: [null, ...tokens.map((token) => namedLogprobs(codec, token, most))],
    text_offset: offsets,
  };
}

/**
 * A token and the ``most`` likely ones by name. Of tokens with one name, such as parts of characters, the likeliest
 * counts. ``ownName`` is the token's, if only a part of it is in the text.
 */
export function namedLogprobs(
  codec: TextCodec,
  { tokenId, logprob, alternatives }: GeneratedToken,
  most: number,
  ownName = nameOf(codec, tokenId),
): Record<string, number> {
  const values = new Map([[ownName, logprob ?? 0]]);
  for (const each of alternatives.slice(0, most)) {
    const name = each.tokenId === tokenId ? ownName : nameOf(codec, each.tokenId);
    values.set(name, Math.max(each.logprob, values.get(name) ?? each.logprob));
  }
  return Object.fromEntries(values);
}

/** The token as text; incomplete characters become U+FFFD. */
export function nameOf(codec: TextCodec, id: number): string {
  return new TextDecoder().decode(codec.tokenBytes(id) ?? new Uint8Array());
}

/** An answer without tokens: the engine's own has at least one. It reports the prompt's log-probabilities. */
export async function* promptOnly(
  source: TokenSource,
  request: TokenRequest,
): AsyncGenerator<GeneratedToken, AnswerEnd, undefined> {
  const { promptIds, promptLogprobs: count = 0, constraint } = request;
  constraint?.dispose();
  const end = { finishReason: "length", promptTokens: promptIds.length, cachedTokens: 0, completionTokens: 0 } as const;
  if (count === 0) return end;
  const tokens = source.generateTokens({ ...request, maxTokens: 1, constraint: undefined });
  try {
    for (;;) {
      const { done, value } = await tokens.next();
      if (done === true) return { ...end, cachedTokens: value.cachedTokens };
      yield* [];
    }
  } finally {
    await tokens.return(end);
  }
}

// A model that is a hash: the next token depends on all tokens before it, so a page with a wrong token causes a wrong
// answer. tests/conformance/scheduler.json was created with it.

export const VOCAB = 16;
export const STOP = 0;

export function nextToken(tokens: readonly number[]): number {
  return hashOf(tokens) % VOCAB;
}

/** The hash of the tokens whose hash is ``before``, and one more. */
export function nextHash(before: number, token: number): number {
  return (before * 31 + token + 1) % 65_521;
}

export function hashOf(tokens: readonly number[]): number {
  return tokens.reduce(nextHash, 0);
}

/** The log-probability of each token of the vocabulary; that of `nextToken` is the largest. */
export function logprobsOf(tokens: readonly number[]): readonly number[] {
  return logprobsAfter(hashOf(tokens));
}

/** The same for the hash of the tokens. */
export function logprobsAfter(hash: number, vocab = VOCAB): readonly number[] {
  const logits = Array.from({ length: vocab }, (_, id) => (id === hash % vocab ? 5 : ((hash * (id + 3)) % 97) / 20));
  const sum = Math.log(logits.reduce((total, logit) => total + Math.exp(logit), 0));
  return logits.map((logit) => logit - sum);
}

/** The answer to a single request. */
export function answerOf(
  prompt: readonly number[],
  maxTokens: number,
  context: number,
): { tokens: readonly number[]; finish: "stop" | "length" } {
  const all = [...prompt];
  for (let count = 0; count < maxTokens && all.length <= context; count++) {
    const token = nextToken(all);
    if (token === STOP) return { tokens: all.slice(prompt.length), finish: "stop" };
    all.push(token);
  }
  return { tokens: all.slice(prompt.length), finish: "length" };
}

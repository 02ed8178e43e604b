// Measures whether this device computes the same tokens as the reference.

import type { SelfTestEntry } from "../src/runtime/manifest.js";
import type { BundleFacts } from "./bundle_facts.js";
import type { TokenModel } from "./measure.js";

/** The tokens with which the reference answers a prompt, as tests store them beside a bundle. */
export interface Expected {
  readonly prompt_token_ids: readonly number[];
  readonly token_ids: readonly number[];
}

/**
 * ``agreed`` of the ``checked`` tokens equal the reference's. "self_test" checks the token after each of its rows,
 * "expected" the tokens of one answer up to the first difference.
 */
export type Agreement =
  | { readonly reference: "self_test" | "expected"; readonly checked: number; readonly agreed: number }
  | { readonly reference: "none" };

/** ``expected`` is used if the bundle has no self-test. */
export async function measureAgreement(
  model: TokenModel,
  facts: Pick<BundleFacts, "selfTest" | "endTokenIds">,
  activation: string,
  expected: Expected | null,
  signal: AbortSignal,
): Promise<Agreement> {
  if (facts.selfTest !== null) return checkRows(model, facts.selfTest, facts.endTokenIds, activation, signal);
  return expected === null ? { reference: "none" } : checkAnswer(model, expected, signal);
}

async function checkRows(
  model: TokenModel,
  test: SelfTestEntry,
  endTokenIds: readonly number[],
  activation: string,
  signal: AbortSignal,
): Promise<Agreement> {
  const largest = Math.max(...test.rows.flatMap(({ logits }) => logits.map(Math.abs)));
  // Each of two logits may be off by the tolerance, so tokens this close may swap their order.
  const tie = 2 * largest * (test.tolerances[activation] ?? 0);
  let agreed = 0;
  for (const { row, token_ids, logits } of test.rows) {
    const best = Math.max(...logits);
    const right = token_ids.filter((_, index) => best - (logits[index] ?? -Infinity) <= tie);
    const [actual] = await tokensOf(model, test.prompt_ids.slice(0, row + 1), 1, signal);
    // The model does not yield a token that ends an answer.
    if (actual === undefined ? right.some((id) => endTokenIds.includes(id)) : right.includes(actual)) agreed++;
  }
  return { reference: "self_test", checked: test.rows.length, agreed };
}

async function checkAnswer(
  model: TokenModel,
  { prompt_token_ids, token_ids }: Expected,
  signal: AbortSignal,
): Promise<Agreement> {
  const actual = await tokensOf(model, prompt_token_ids, token_ids.length, signal);
  const different = token_ids.findIndex((id, index) => actual[index] !== id);
  return { reference: "expected", checked: token_ids.length, agreed: different < 0 ? token_ids.length : different };
}

async function tokensOf(
  model: TokenModel,
  promptIds: readonly number[],
  maxTokens: number,
  signal: AbortSignal,
): Promise<number[]> {
  const ids: number[] = [];
  for await (const id of model.continueTokens(promptIds, maxTokens, signal)) ids.push(id);
  return ids;
}

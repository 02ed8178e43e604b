// Both languages near an answer's last token: the allowed tokens are those of tests/conformance/bounded_masks.json.

import { readFileSync } from "node:fs";
import { expect, test } from "vitest";

import type { RequestError } from "../../src/errors.js";
import { hasBit } from "../../src/grammar/constraint.js";
import type { GrammarSource } from "../../src/shared/grammar/source.js";
import { SPEC, demoGrammars } from "./pick.js";

interface Case {
  readonly source: GrammarSource;
  readonly needed: number;
  readonly max_tokens: number;
  readonly steps: readonly (readonly [number, number])[];
}
const VECTORS = JSON.parse(
  readFileSync(new URL("../../../tests/conformance/bounded_masks.json", import.meta.url), "utf8"),
) as { readonly cases: readonly Case[] };
const grammars = demoGrammars();

/** FNV-1a over the allowed ids. */
function fingerprint(mask: Int32Array | null): number {
  let value = 0x811c9dc5;
  for (let id = 0; id < SPEC.vocab_size; id++)
    if (mask === null || hasBit(mask, id)) value = Math.imul(value ^ id, 0x01000193) >>> 0;
  return value;
}

test.each(VECTORS.cases)(
  "$source within $max_tokens tokens",
  async ({ source, needed, max_tokens: maxTokens, steps }) => {
    const refusal = await grammars
      .constraint(source, needed - 1)
      .catch((error: unknown) => (error as RequestError).details.needed);
    expect(refusal).toBe(needed);
    const constraint = await grammars.constraint(source, maxTokens);
    for (const [index, [expected, id]] of steps.entries()) {
      expect(fingerprint(constraint.mask()), `token ${index}`).toBe(expected);
      if (id >= 0) constraint.accept(id);
    }
    expect(constraint.complete).toBe(true);
    constraint.dispose();
  },
);

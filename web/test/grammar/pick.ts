// Answers without a model: at each step any of the tokens that a constraint allows, drawn from a seed.

import { readFileSync } from "node:fs";

import { mulberry32 } from "../engine/mulberry32.js";
import type { GrammarConstraint } from "../../src/grammar/constraint.js";
import { hasBit } from "../../src/grammar/constraint.js";
import { Grammars } from "../../src/grammar/grammars.js";
import { readVocabulary } from "../../src/grammar/vocabulary.js";

const JSON_TEXT = readFileSync(new URL("../../../compiler/demo/nearfar-demo/tokenizer.json", import.meta.url), "utf8");
/** The size of the demo model's vocabulary, with padding at the end, as in many models. */
export const SPEC = { vocab_size: 1030, eos_token_ids: [3] };
export const demoGrammars = (): Grammars => new Grammars(JSON_TEXT, SPEC);
export const VOCABULARY = readVocabulary(JSON_TEXT, SPEC);

export interface Picked {
  readonly text: string;
  readonly tokens: number;
  readonly finishReason: "stop" | "length";
}

/** As in the engine: until a stop token, until no further token is allowed, or until maxTokens. */
export function pick(constraint: GrammarConstraint, maxTokens: number, seed: number): Picked {
  const draw = mulberry32(seed);
  const bytes: number[] = [];
  for (let tokens = 0; ; tokens++) {
    const text = (): string => new TextDecoder().decode(Uint8Array.from(bytes));
    if (constraint.finished) return { text: text(), tokens, finishReason: "stop" };
    if (tokens === maxTokens) return { text: text(), tokens, finishReason: "length" };
    const mask = constraint.mask();
    const allowed = Array.from({ length: SPEC.vocab_size }, (_, id) => id).filter(
      (id) => mask === null || hasBit(mask, id),
    );
    const id = allowed[Math.floor(draw() * allowed.length)] ?? -1;
    if (SPEC.eos_token_ids.includes(id)) return { text: text(), tokens, finishReason: "stop" };
    bytes.push(...(VOCABULARY.tokens[id] ?? []));
    constraint.accept(id);
  }
}

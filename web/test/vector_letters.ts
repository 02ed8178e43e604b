// The letters bundle as a model of vectors: a text's vector is the row of its last letter, with a single 10 at the index
// of the letter that follows.

import type { Manifest, PlanEntry } from "../src/runtime/manifest.js";
import { planOf } from "../src/runtime/plan.js";
import { lettersBundle } from "./letters_bundle.js";

const UNUSED = ["sample_slots", "sample_settings"];
const PAGES = ["slots", "page_indptr", "page_ids"];

/** The letters' plan as plan "embed" with pages, or without them, as an encoder has it. */
export function vectorPlan({ isPaged = true } = {}): PlanEntry {
  const { inputs, states, buffers, steps, ...plan } = planOf(lettersBundle().manifest);
  const { sampled, kv } = states;
  const { logits, x } = buffers;
  if (sampled === undefined || kv === undefined || logits === undefined || x === undefined)
    throw new Error("no buffers");
  const used = Object.entries(inputs).filter(([name]) => ![...UNUSED, ...(isPaged ? [] : PAGES)].includes(name));
  return {
    ...plan,
    inputs: Object.fromEntries(used),
    states: isPaged ? { kv, sampled } : { sampled },
    buffers: { logits, x },
    steps: steps.slice(0, 2),
    outputs: { embeddings: "logits" },
  };
}

export const VECTORS: Manifest["embedding"] = {
  pooling: "last_token",
  normalize: true,
  size: 8,
  dense: [],
  prompts: [],
  default_prompt: null,
  dimensions: [],
};

/** The changes of a manifest that make an embedding model of the letters, without a test. */
export function vectorLetters(options: { readonly isPaged?: boolean } = {}): Partial<Manifest> {
  return { embedding: VECTORS, self_test: null, plans: { embed: vectorPlan(options) } };
}

/** A sentence, all letters, and a single one. */
export const VECTOR_TEST: NonNullable<Manifest["vector_test"]> = {
  texts: [[3, 1, 4, 1, 5, 2, 6], [0, 1, 2, 3, 4, 5, 6, 7], [4]],
  rows: [
    { row: 0, elements: [0, 3, 7], values: [0, 10, 0] },
    { row: 1, elements: [1, 6], values: [0, 10] },
    { row: 2, elements: [5, 6], values: [10, 0] },
  ],
  tolerances: { float32: 1e-3, float16: 1e-2 },
};

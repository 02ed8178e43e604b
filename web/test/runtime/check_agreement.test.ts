// The check of a manifest reports every fault as a BundleError before anything is fetched or allocated.

import { readFileSync } from "node:fs";

import { describe, expect, test } from "vitest";

import { BundleError } from "../../src/errors.js";
import { checkManifest } from "../../src/runtime/load_manifest.js";
import type { Manifest, PlaneEntry, VisionSpec } from "../../src/runtime/manifest.js";
import { planOf } from "../../src/runtime/plan.js";
import { lettersBundle } from "../letters_bundle.js";
import { VISION } from "../seeing_letters.js";
import { VECTOR_TEST, vectorLetters } from "../vector_letters.js";

interface Names {
  readonly accepted: readonly string[];
  readonly refused: readonly string[];
}

const NAMES = JSON.parse(
  readFileSync(new URL("../../../tests/conformance/file_names.json", import.meta.url), "utf8"),
) as Names;
/** NEARFAR_FUZZ_EXAMPLES sets a larger number. */
const MUTATIONS = Number(process.env.NEARFAR_FUZZ_EXAMPLES ?? 500);
const { manifest } = lettersBundle();
const plan = planOf(manifest);

function withFile(file: string): unknown {
  return { ...manifest, shards: manifest.shards.map((shard) => ({ ...shard, file })) };
}

describe("names of files, as in Python", () => {
  test.each(NAMES.accepted)("%j is accepted", (name) => {
    expect(() => checkManifest(withFile(name))).not.toThrow();
  });
  test.each(NAMES.refused)("%j is refused", (name) => {
    expect(() => checkManifest(withFile(name))).toThrow("shards[0].file must be a plain name");
  });
});

function withPlane(change: Partial<PlaneEntry>): Partial<Manifest> {
  const [name, weight] = Object.entries(manifest.weights)[0] ?? ["", undefined];
  if (weight === undefined) throw new Error("no weight");
  return {
    weights: {
      ...manifest.weights,
      [name]: { ...weight, planes: weight.planes.map((plane) => ({ ...plane, ...change })) },
    },
  };
}

function withPlan(change: Partial<typeof plan>): Partial<Manifest> {
  return { plans: { generate: { ...plan, ...change } } };
}

function withInput(name: string, shape: readonly (string | number)[]): Partial<Manifest> {
  return withPlan({ inputs: { ...plan.inputs, [name]: { shape, dtype: "int32" } } });
}

test("the positions and the reach of tokens fit the tower", () => {
  const changed = (input: string, change: Partial<VisionSpec>) => ({
    ...manifest,
    ...withInput(input, ["S"]),
    spec: { ...manifest.spec, vision: { ...VISION, ...change } },
  });
  expect(() => checkManifest(changed("reach", { both_ways: "windows" }))).not.toThrow();
  expect(() => checkManifest(changed("reach", { mrope_section: [1, 1, 1] }))).toThrow("spec.vision");
  expect(() => checkManifest(changed("rope_positions", { mrope_section: [1, 1, 1] }))).not.toThrow();
  expect(() => checkManifest(changed("rope_positions", { both_ways: "all" }))).toThrow("spec.vision");
});

function withVectors(change: Partial<typeof VECTOR_TEST>): Partial<Manifest> {
  return { ...vectorLetters(), vector_test: { ...VECTOR_TEST, ...change } };
}

test("an embedding model with a vector test is accepted", () => {
  expect(() => checkManifest({ ...manifest, ...withVectors({}) })).not.toThrow();
});

test.each<readonly [string, unknown]>([
  ["a hash that is a path", { files: manifest.files.map((file) => ({ ...file, sha256: "../x" })) }],
  ["an offset beyond the shard", withPlane({ offset: 2 ** 40 })],
  ["an end beyond the shard", withPlane({ shard: 0, offset: (manifest.shards[0]?.size ?? 0) - 4 })],
  ["a negative offset", withPlane({ offset: -4 })],
  ["a size that is not the shape's", withPlane({ size: 4 })],
  ["a shard that there is not", withPlane({ shard: 9 })],
  ["no layers", { spec: { ...manifest.spec, num_layers: 0 } }],
  ["too many layers", { spec: { ...manifest.spec, num_layers: 2 ** 30 } }],
  ["heads that no group divides", { spec: { ...manifest.spec, num_kv_heads: 3 } }],
  ["a context beyond the positions", { context: manifest.spec.max_position_embeddings + 1 }],
  [
    "a context of more tokens than arrays hold",
    { context: 2 ** 25, spec: { ...manifest.spec, max_position_embeddings: 2 ** 25 } },
  ],
  ["a vocabulary of more tokens than arrays hold", { spec: { ...manifest.spec, vocab_size: 2 ** 25 } }],
  ["a tokenizer that is not among the files", { tokenizer: { ...manifest.tokenizer, file: "other.json" } }],
  [
    "an array that there is not",
    withPlan({ steps: plan.steps.map((step) => ({ ...step, inputs: { ...step.inputs, more: "nowhere" } })) }),
  ],
  [
    "a name that every object has",
    withPlan({ steps: plan.steps.map((step) => ({ ...step, variants: "constructor" })) }),
  ],
  ["an output that there is not", withPlan({ outputs: { ...plan.outputs, logits: "toString" } })],
  ["kernels that there are not", { kernels: {} }],
  ["a dim that there is not", withPlan({ buffers: { ...plan.buffers, more: { shape: ["Q"], dtype: "float32" } } })],
  [
    "a division by nothing",
    withPlan({ buffers: { ...plan.buffers, more: { shape: [["ceildiv", "S", 0]], dtype: "float32" } } }),
  ],
  [
    "a constant of another shape",
    withPlan({
      constants: { more: { kind: "rope", shape: [2 ** 30, 1, 2], inverse_frequencies: [1], scale: 1, first: 0 } },
    }),
  ],
  [
    "a page group for windows that there are not",
    withPlan({ inputs: { ...plan.inputs, window_page_ids: { shape: ["LW"], dtype: "int32" } } }),
  ],
  ["tokens that rotate by row and column without such a tower", withInput("rope_positions", ["S", 3])],
  ["tokens that see whole pictures without such a tower", withInput("reach", ["S"])],
  ["a token beyond the vocabulary", { self_test: { prompt_ids: [99], rows: [], tolerances: {} } }],
  [
    "a row beyond the prompt",
    { self_test: { prompt_ids: [1], rows: [{ row: 1, token_ids: [1], logits: [1], logsumexp: 1 }], tolerances: {} } },
  ],
  ["a vector test of a text beyond the vocabulary", withVectors({ texts: [[3], [8]] })],
  ["a vector test with an empty text", withVectors({ texts: [[], [1], [2]] })],
  ["a vector test of a text that is not there", withVectors({ texts: [[3]] })],
  ["a vector test of an element that is not there", withVectors({ rows: [{ row: 0, elements: [8], values: [1] }] })],
  ["a vector test with a value too few", withVectors({ rows: [{ row: 0, elements: [1, 2], values: [1] }] })],
  ["a vector test that every result passes", withVectors({ rows: [] })],
  ["a vector test of zeros", withVectors({ rows: [{ row: 0, elements: [1], values: [0] }] })],
])("%s is refused", (_, change) => {
  expect(() => checkManifest({ ...manifest, ...(change as object) })).toThrow(BundleError);
});

test("an expression with many levels is refused without a stack overflow", () => {
  let nested: unknown = "S";
  for (let level = 0; level < 100_000; level++) nested = ["add", nested, 1];
  const data = JSON.parse(JSON.stringify(manifest)) as { scratch: Record<string, unknown> };
  data.scratch.more = { shape: [nested], dtype: "float32" };
  expect(() => checkManifest(data)).toThrow(BundleError);
});

test(`each of ${MUTATIONS} mutated manifests is accepted or is a BundleError`, () => {
  const text = JSON.stringify(manifest);
  let state = 1;
  const random = (below: number): number => {
    // Numerical Recipes' generator.
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
  let accepted = 0;
  for (let round = 0; round < MUTATIONS; round++) {
    const data: unknown = JSON.parse(text);
    for (let change = 0; change <= random(3); change++) mutate(data, random);
    try {
      // Converts to the form in a file, without holes in lists.
      checkManifest(JSON.parse(JSON.stringify(data)));
      accepted++;
    } catch (error) {
      expect(error).toBeInstanceOf(BundleError);
    }
  }
  expect(accepted).toBeLessThan(MUTATIONS / 2);
});

const VALUES: readonly unknown[] = [
  null,
  true,
  0,
  1,
  -1,
  2 ** 31,
  2 ** 53,
  0.5,
  "",
  "S",
  "Q",
  "../x",
  "__proto__",
  "constructor",
  [],
  {},
  [0],
  "a".repeat(5000),
];

function mutate(data: unknown, random: (below: number) => number): void {
  let holder = data as Record<string, unknown>;
  for (;;) {
    const inner = Object.values(holder).filter(
      (value) => typeof value === "object" && value !== null && Object.keys(value).length > 0,
    );
    if (inner.length === 0 || random(7) === 0) break;
    holder = inner[random(inner.length)] as Record<string, unknown>;
  }
  const keys = Object.keys(holder);
  const [key = "", other = ""] = [keys[random(keys.length)], keys[random(keys.length)]];
  const value = holder[key];
  switch (random(5)) {
    case 0:
      Reflect.deleteProperty(holder, key);
      break;
    case 1:
      holder[key] = VALUES[random(VALUES.length)];
      break;
    case 2:
      [holder[key], holder[other]] = [holder[other], value];
      break;
    case 3:
      holder[`${key}2`] = value;
      break;
    default:
      holder[key] =
        typeof value === "number"
          ? ([value + 1, value - 1, -value, value * 2, 2 ** 40][random(5)] ?? 0)
          : VALUES[random(VALUES.length)];
  }
}

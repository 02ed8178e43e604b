// The letters with eyes: token h is "<image>", the placeholder of pictures. A picture of 4 x 4 pixels is one tile with 4
// features; larger ones are cut. A feature is the row of a letter: the one whose number is the sum of the block's bytes,
// modulo 8. So the letter after a placeholder follows from the picture.

import { createHash } from "node:crypto";

import { testPatches } from "../src/images/vision_test.js";
import type { ImageSpec, Manifest, PlanEntry, VisionSpec, FeatureTestEntry } from "../src/runtime/manifest.js";
import type { LettersBundle } from "./letters_bundle.js";
import { bytesOf, lettersBundle } from "./letters_bundle.js";
import { treeOf } from "./text/template_trees.js";

export const PLACEHOLDER = 7;

export const SEEING: ImageSpec = {
  patch: 1,
  block: 2,
  order: "row_column_channel",
  filter: "bilinear",
  mean: null,
  std: null,
  size: { rule: "longest_edge", pixels: 8, most: 8 },
  tiles: { rule: "even", side: 4 },
  positions: { rule: "fractions", side: 4, taps: 1 },
  prompt: {
    mark: "<image>",
    placeholder: "<image>",
    placeholder_id: PLACEHOLDER,
    start: "a",
    whole: "",
    tile: "b",
    row_end: "c",
    overview: "d",
    end: "",
  },
  video: null,
};

const SEE = `struct U { F: i32 }
@group(0) @binding(0) var<storage, read> patches: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> u: U;
@compute @workgroup_size(8) fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(local_invocation_id) l: vec3<u32>) {
  if (i32(g.y) >= u.F) { return; }
  var sum = 0.0;
  for (var i = 0u; i < 12u; i++) { sum += floor(patches[g.y * 12u + i] * 255.0 + 0.5); }
  y[g.y * 8u + l.x] = select(0.0, 10.0, u32(abs(sum)) % 8u == l.x);
}`;
const PLACE = `struct U { F: i32 }
@group(0) @binding(0) var<storage, read> features: array<f32>;
@group(0) @binding(1) var<storage, read> rows: array<i32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@group(0) @binding(3) var<uniform> u: U;
@compute @workgroup_size(8) fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(local_invocation_id) l: vec3<u32>) {
  if (i32(g.y) >= u.F) { return; }
  y[u32(rows[g.y]) * 8u + l.x] = features[g.y * 8u + l.x];
}`;

const TEMPLATE =
  "{% for m in messages %}{% for p in m.content %}{% if p.type == 'image' %}<image>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endfor %}";

/** The letter that a block of patches stands for, as the kernel computes it. */
export function letterOf(patches: Float32Array): number {
  const { floor, fround } = Math;
  return Math.abs(patches.reduce((sum, value) => sum + floor(fround(fround(value * 255) + 0.5)), 0)) % 8;
}

/** The spec of a tower whose features are letters. */
export const VISION: VisionSpec = {
  model_type: "letters",
  hidden_size: 8,
  num_layers: 1,
  num_heads: 1,
  intermediate_size: 8,
  activation: "gelu",
  norm_eps: 1e-6,
  patch_elements: 3,
  tile_patches: 16,
  positions: 16,
  block: 2,
  projector_size: null,
  projector_activation: "none",
  projector_bias: false,
  projector_norm: false,
  projector_eps: 1e-6,
  both_ways: "none",
  tile_side: 0,
  deepstack_layers: [],
  mrope_section: [],
  bounded: false,
  frames: 1,
};

/** Expects each feature of the test's patches to be as the kernel computes it. */
function visionTest(): FeatureTestEntry {
  const { patches } = testPatches(SEEING, 16);
  const rows = [0, 1, 2, 3].map((row) => {
    const letter = letterOf(patches.subarray(row * 12, row * 12 + 12));
    return { row, elements: [letter, (letter + 1) % 8], values: [10, 0] };
  });
  return { rows, tolerances: { float32: 1e-3, float16: 1e-3 } };
}

export function seeingBundle(changes: Partial<Manifest> = {}): LettersBundle {
  const { manifest, files } = lettersBundle();
  const { generate } = manifest.plans;
  const take = manifest.kernels.take_rows;
  if (generate === undefined || take === undefined) throw new Error("no plan");
  const added = (name: string, code: string, roles: readonly string[]) => {
    const file = `kernels/${name}.wgsl`;
    files[file] = bytesOf(code);
    const bindings = roles.map((role) => ({ role, plane: null, access: role === "y" ? "write" : "read" }) as const);
    const sha256 = createHash("sha256").update(code).digest("hex");
    return {
      ...take,
      template: name,
      file,
      sha256,
      bindings,
      uniforms: ["F" as const],
      grid: [1, "F" as const] as const,
    };
  };
  const [embed, ...others] = generate.steps;
  if (embed === undefined) throw new Error("no steps");
  const placed = {
    ...embed,
    op: "place_rows",
    variants: "place",
    inputs: { features: "features", rows: "feature_rows" },
  };
  const features = { shape: ["F", 8], dtype: "float32" } as const;
  const floats = (columns: number) => ({ shape: ["V", columns], dtype: "float32" }) as const;
  const vision: PlanEntry = {
    inputs: {
      patches: floats(3),
      patch_rows: { shape: ["V", 1], dtype: "int32" },
      patch_weights: floats(1),
      patch_starts: { shape: [["add", "I", 1]], dtype: "int32" },
    },
    states: {},
    constants: {},
    buffers: { seen: features },
    steps: [{ ...embed, op: "fold_rows", variants: "see", inputs: { patches: "patches" }, outputs: { y: "seen" } }],
    outputs: { features: "seen" },
    gathered: {},
  };
  const always = { activation: null, needs: [], when: null };
  const tokenizer = JSON.parse(new TextDecoder().decode(files["tokenizer.json"])) as {
    readonly model: { readonly vocab: Record<string, number> };
  };
  delete tokenizer.model.vocab.h;
  tokenizer.model.vocab["<image>"] = PLACEHOLDER;
  const flags = { single_word: false, lstrip: false, rstrip: false, normalized: false, special: true };
  const json = { ...tokenizer, added_tokens: [{ id: PLACEHOLDER, content: "<image>", ...flags }] };
  files["tokenizer.json"] = bytesOf(JSON.stringify(json));
  const sha256 = createHash("sha256").update(files["tokenizer.json"]).digest("hex");
  const seeing: Manifest = {
    ...manifest,
    images: SEEING,
    vision_test: visionTest(),
    spec: {
      ...manifest.spec,
      vision: VISION,
    },
    tokenizer: { ...manifest.tokenizer, chat_template: TEMPLATE, chat_tree: treeOf(TEMPLATE) },
    files: [{ file: "tokenizer.json", size: files["tokenizer.json"].length, sha256 }],
    plans: {
      generate: {
        ...generate,
        inputs: { ...generate.inputs, features, feature_rows: { shape: ["F"], dtype: "int32" } },
        steps: [embed, placed, ...others],
      },
      vision,
    },
    variants: {
      ...manifest.variants,
      see: [{ kernels: ["see"], ...always }],
      place: [{ kernels: ["place"], ...always }],
    },
    kernels: {
      ...manifest.kernels,
      see: added("see", SEE, ["patches", "y"]),
      place: added("place", PLACE, ["features", "rows", "y"]),
    },
    ...changes,
  };
  files["manifest.json"] = bytesOf(JSON.stringify(seeing));
  return { manifest: seeing, files };
}

// A hand-written bundle for tests without the compiler: its "model" maps token t to (3 t + 1) mod 8, by a table of
// one-hot rows. Two kernels take the sampled rows; the first one passes them to the second one in scratch memory. The
// model is always greedy, supports the bias but neither penalties nor the mask, and lists logits instead of
// log-probabilities for the most likely tokens.

import { createHash } from "node:crypto";

import type { Expr, KernelEntry, Manifest, SelfTestEntry, WeightEntry } from "../src/runtime/manifest.js";
import { FORMAT_VERSION } from "../src/runtime/manifest.js";
import type { Source } from "../src/runtime/source.js";
import { COPY, EMBED, SAMPLE, TAKE_ROWS, TOP } from "./letters_kernels.js";
import { templateEntry } from "./text/template_trees.js";

export type Files = Record<string, Uint8Array<ArrayBuffer>>;

export interface LettersBundle {
  readonly manifest: Manifest;
  readonly files: Files;
}

const WRITTEN: readonly string[] = ["y", "sampled_now", "logprobs", "ids"];

/**
 * Stops at token 5 ("f"). ``changes`` replaces keys of the manifest. ``embeds`` contains more kernels by name, with the
 * bindings of "embed".
 */
export function lettersBundle(
  changes: Partial<Manifest> = {},
  embeds: Readonly<Record<string, string>> = {},
): LettersBundle {
  const table = new Float32Array(64);
  for (let token = 0; token < 8; token++) table[token * 8 + ((3 * token + 1) % 8)] = 10;
  const files: Files = {
    "weights/00000.bin": new Uint8Array(table.buffer),
    "tokenizer.json": bytesOf(JSON.stringify(TOKENIZER)),
    "kernels/embed.wgsl": bytesOf(EMBED),
    "kernels/take_rows.wgsl": bytesOf(TAKE_ROWS),
    "kernels/copy.wgsl": bytesOf(COPY),
    "kernels/sample.wgsl": bytesOf(SAMPLE),
    "kernels/top_logprobs.wgsl": bytesOf(TOP),
    ...Object.fromEntries(Object.entries(embeds).map(([name, code]) => [`kernels/${name}.wgsl`, bytesOf(code)])),
  };
  const kernel = (
    name: string,
    roles: readonly string[],
    rest: Pick<KernelEntry, "uniforms" | "grid" | "workgroup_size">,
  ): KernelEntry => ({
    template: name,
    facts: {},
    file: `kernels/${name}.wgsl`,
    sha256: hashOf(files, `kernels/${name}.wgsl`),
    entry: "main",
    bindings: roles.map((role, index) => ({
      role,
      plane: role === "table" ? "w" : role === "scratch" ? "rows" : null,
      access: WRITTEN.includes(role) || (role === "scratch" && index === roles.length - 1) ? "write" : "read",
    })),
    shared_bytes: 0,
    ...rest,
  });
  const embedding = (name: string): KernelEntry =>
    kernel(name, ["table", "token_ids", "sampled", "y"], { uniforms: ["S", 0], grid: [1, "S"], workgroup_size: 8 });
  const row = { activation: null, needs: [], when: null };
  const ints = (size: Expr) => ({ shape: [size], dtype: "int32" as const });
  const file = (name: string) => ({ file: name, size: files[name]?.length ?? 0, sha256: hashOf(files, name) });
  const manifest: Manifest = {
    format_version: FORMAT_VERSION,
    generator: "test",
    target: "webgpu",
    arch: null,
    model: "letters",
    spec: SPEC,
    origin: null,
    prefixes: [],
    embedding: null,
    classifier: null,
    speech: null,
    ctc: null,
    images: null,
    sounds: null,
    quantization: "f32",
    context: 256,
    page_size: 16,
    kv: "activation",
    lora: null,
    activations: [{ dtype: "float32", needs: [] }],
    plans: {
      generate: {
        inputs: {
          token_ids: ints("S"),
          positions: ints("S"),
          slots: ints("S"),
          seq_starts: ints(["add", "B", 1]),
          page_indptr: ints(["add", "B", 1]),
          page_ids: ints("L"),
          sample_rows: ints("R"),
          sample_slots: { shape: ["R", 2], dtype: "int32" },
          sample_settings: { shape: ["R", 8], dtype: "float32" },
        },
        states: {
          kv: { shape: ["P", 2, 1, 16, 2], dtype: "activation" },
          sampled: ints("N"),
          token_counts: { shape: ["N", 8], dtype: "int32" },
          logit_bias: { shape: ["N", 8], dtype: "float32" },
          token_mask: { shape: ["N", 1], dtype: "int32" },
        },
        constants: {
          rope_table: { kind: "rope", shape: [256, 2, 2], inverse_frequencies: [1, 0.01], scale: 1, first: 0 },
        },
        buffers: {
          x: { shape: ["S", 8], dtype: "float32" },
          logits: { shape: ["R", 8], dtype: "float32" },
          next: ints("R"),
          logprobs: { shape: ["R"], dtype: "float32" },
          top_ids: { shape: ["W", 8], dtype: "int32" },
          top_logprobs: { shape: ["W", 8], dtype: "float32" },
        },
        steps: [
          {
            op: "embed",
            variants: "embed",
            inputs: { table: "table", token_ids: "token_ids", sampled: "sampled" },
            outputs: { y: "x" },
            attrs: {},
          },
          {
            op: "take_rows",
            variants: "take_rows",
            inputs: { x: "x", rows: "sample_rows" },
            outputs: { y: "logits" },
            attrs: {},
          },
          {
            op: "sample",
            variants: "sample",
            inputs: {
              logits: "logits",
              slots: "sample_slots",
              bias: "logit_bias",
              settings: "sample_settings",
              sampled_now: "sampled",
            },
            outputs: { y: "next", logprobs: "logprobs" },
            attrs: {},
          },
          {
            op: "top_logprobs",
            variants: "top_logprobs",
            inputs: { logits: "logits" },
            outputs: { ids: "top_ids", logprobs: "top_logprobs" },
            attrs: {},
          },
        ],
        outputs: {
          logits: "logits",
          next_token_ids: "next",
          token_logprobs: "logprobs",
          top_token_ids: "top_ids",
          top_logprobs: "top_logprobs",
        },
        gathered: {},
      },
    },
    variants: {
      embed: [
        { kernels: ["embed_few"], activation: null, needs: [], when: ["<=", "S", 4] },
        { kernels: ["embed_many"], ...row },
      ],
      take_rows: [{ kernels: ["take_rows", "copy"], ...row }],
      sample: [{ kernels: ["sample"], ...row }],
      top_logprobs: [{ kernels: ["top_logprobs"], ...row }],
    },
    scratch: { rows: { shape: ["R", 8], dtype: "float32" } },
    kernels: {
      embed_few: embedding("embed"),
      embed_many: embedding("embed"),
      ...Object.fromEntries(Object.keys(embeds).map((name) => [name, embedding(name)])),
      take_rows: kernel("take_rows", ["x", "rows", "scratch"], {
        uniforms: ["R", 0],
        grid: [1, "R"],
        workgroup_size: 8,
      }),
      copy: kernel("copy", ["scratch", "y"], { uniforms: ["R", 0], grid: [1, "R"], workgroup_size: 8 }),
      sample: kernel("sample", ["logits", "slots", "bias", "settings", "sampled_now", "y", "logprobs"], {
        uniforms: ["R", ["sub", "R", 1]],
        grid: ["R", 1],
        workgroup_size: 1,
      }),
      top_logprobs: kernel("top_logprobs", ["logits", "ids", "logprobs"], {
        uniforms: ["W", ["sub", "W", 1]],
        grid: ["W", 1],
        workgroup_size: 1,
      }),
    },
    weights: {
      table: {
        shape: [8, 8],
        quantization: null,
        layout: "rows",
        planes: [{ name: "w", dtype: "float32", shape: [8, 8], shard: 0, offset: 0, size: 256 }],
      },
    },
    host_weights: {},
    shards: [file("weights/00000.bin")],
    tokenizer: {
      file: "tokenizer.json",
      ...templateEntry("{% for m in messages %}{{ m.content }}{% endfor %}"),
      ...NO_SPECIAL_TOKENS,
    },
    files: [file("tokenizer.json")],
    self_test: SELF_TEST,
    vector_test: null,
    vision_test: null,
    hearing_test: null,
    tuning: [],
    ...changes,
  };
  files["manifest.json"] = bytesOf(JSON.stringify(manifest));
  return { manifest, files };
}

/** A source of files in memory, which sends them in pieces of ``piece`` bytes. */
export function memorySource(files: Files, piece = 100): Source {
  return {
    location: "memory",
    open(file, signal) {
      signal.throwIfAborted();
      const bytes = files[file];
      if (bytes === undefined) return Promise.reject(new Error(`${file} is not here`));
      let sent = 0;
      const stream = new ReadableStream<Uint8Array>({
        pull(controller) {
          if (sent >= bytes.length) {
            controller.close();
            return;
          }
          controller.enqueue(bytes.slice(sent, sent + piece));
          sent += piece;
        },
      });
      return Promise.resolve(stream);
    },
  };
}

/**
 * The same bundle with two layers: one that attends to the complete context, and one with a window, in a second page
 * group.
 */
export function windowedBundle(window: number): LettersBundle {
  const { manifest } = lettersBundle();
  const { generate } = manifest.plans;
  if (generate === undefined) throw new Error("no plan");
  const { inputs, states } = generate;
  const added = {
    window_slots: { shape: ["S"], dtype: "int32" },
    window_page_indptr: { shape: [["add", "B", 1]], dtype: "int32" },
    window_page_ids: { shape: ["LW"], dtype: "int32" },
  } as const;
  const window_kv = { shape: ["PW", 2, 1, 16, 4], dtype: "activation" } as const;
  const plan = { ...generate, inputs: { ...inputs, ...added }, states: { ...states, window_kv } };
  const spec = { ...manifest.spec, num_layers: 2, windows: [null, window] };
  return lettersBundle({ spec, plans: { generate: plan } });
}

/** The letters with their table on the host, in halves: one has the rows of the first five letters. */
export function tabledBundle(): LettersBundle {
  const { manifest, files } = lettersBundle();
  const { generate } = manifest.plans;
  if (generate === undefined) throw new Error("no plan");
  // Rows of 32 columns, half as large as the rows that the kernels read.
  const table = new Float32Array(8 * 32);
  for (let token = 0; token < 8; token++) table[token * 32 + ((3 * token + 1) % 8)] = 5;
  const file = "weights/00001.bin";
  files[file] = new Uint8Array(table.buffer);
  const part = (first: number, rows: number): WeightEntry => {
    const place = { shard: 1, offset: first * 128, size: rows * 128 };
    const plane = { name: "w", dtype: "float32", shape: [rows, 32], ...place } as const;
    return { shape: [rows, 8], quantization: "f32", layout: "rows", planes: [plane] };
  };
  const { x, ...buffers } = generate.buffers;
  const plan = {
    ...generate,
    inputs: { ...generate.inputs, x: { ...x, shape: ["S", 8], dtype: "float32" as const } },
    buffers,
    steps: generate.steps.filter(({ op }) => op !== "embed"),
    gathered: { x: { weights: ["first", "second"], scale: 2 } },
  };
  const changed = {
    ...manifest,
    plans: { generate: plan },
    host_weights: { first: part(0, 5), second: part(5, 3) },
    shards: [...manifest.shards, { file, size: table.byteLength, sha256: hashOf(files, file) }],
  };
  files["manifest.json"] = bytesOf(JSON.stringify(changed));
  return { manifest: changed, files };
}

export function bytesOf(text: string): Uint8Array<ArrayBuffer> {
  return new Uint8Array(new TextEncoder().encode(text));
}

// One of the eight logits is 10, the others are 0.
export const SELF_TEST: SelfTestEntry = {
  prompt_ids: Array.from({ length: 20 }, (_, index) => (5 * index) % 8),
  rows: Array.from({ length: 20 }, (_, index) => {
    const next = (15 * index + 1) % 8;
    return { row: index, token_ids: [next, (next + 1) % 8], logits: [10, 0], logsumexp: Math.log(Math.exp(10) + 7) };
  }),
  tolerances: { float32: 1e-3, float16: 1e-2 },
};

export const NO_SPECIAL_TOKENS = {
  bos_token: null,
  eos_token: null,
  pad_token: null,
  unk_token: null,
  add_bos_token: null,
  tools: null,
};

const SPEC: Manifest["spec"] = {
  model_type: "letters",
  vocab_size: 8,
  hidden_size: 8,
  num_layers: 1,
  num_heads: 1,
  num_kv_heads: 1,
  head_dim: 2,
  intermediate_size: 8,
  max_position_embeddings: 256,
  rms_norm_eps: 1e-6,
  rope: {
    theta: 10000,
    scaling: "none",
    factor: 1,
    low_freq_factor: 1,
    high_freq_factor: 4,
    original_max_position_embeddings: 0,
    rotary_dim: null,
    attention_factor: 1,
    beta_fast: 32,
    beta_slow: 1,
    truncate: true,
    short_factors: [],
    long_factors: [],
    query_beta: 0,
  },
  window_rope: null,
  unrotated: [],
  attention_scale: null,
  attention_softcap: null,
  logit_softcap: null,
  logit_scale: 1,
  embedding_scale: 1,
  residual_scale: 1,
  window_head_dim: null,
  window_num_kv_heads: null,
  num_kv_shared_layers: 0,
  shared_intermediate_size: null,
  per_layer_size: 0,
  per_layer_vocab_size: 0,
  causal: true,
  sinks: false,
  keys_are_values: false,
  first_position: 0,
  num_token_types: 0,
  embedding_size: null,
  projected_size: null,
  distances: null,
  convolution: null,
  mixers: [],
  states: null,
  vision: null,
  hearing: null,
  draft_layers: 0,
  factors: {},
  audio: null,
  conformer: null,
  experts: null,
  qkv_limit: null,
  tie_word_embeddings: false,
  qkv_bias: false,
  output_bias: false,
  mlp_bias: false,
  qk_norm: false,
  windows: [],
  activation: "silu",
  bos_token_id: null,
  eos_token_ids: [5],
};

const TOKENIZER = {
  version: "1.0",
  added_tokens: [],
  normalizer: null,
  pre_tokenizer: { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: true },
  post_processor: null,
  decoder: { type: "ByteLevel" },
  model: {
    type: "BPE",
    vocab: Object.fromEntries(["a", "b", "c", "d", "e", "f", "g", "h"].map((letter, id) => [letter, id])),
    merges: [],
  },
};

function hashOf(files: Files, name: string): string {
  return createHash("sha256")
    .update(files[name] ?? new Uint8Array())
    .digest("hex");
}

// The bundle's manifest. Written by compiler/bundle/schema.py from compiler/bundle/manifest.py: change it there.

/** A size: an int, the name of a dim, or [operator, left, right]. */
export type Expr = number | string | readonly [string, Expr, Expr];

/** [comparison, left, right], ["and", condition, condition], or null for always. */
export type Condition = readonly [string, unknown, unknown] | null;

export const FORMAT_VERSION = 2;

/** Rotary position embedding of the rotate-half form. Su et al. 2021; "llama3" scaling as in Llama 3.1. "linear" divides all frequencies by ``factor``; "llama3" divides the low ones and blends in between, by wavelength against ``original_max_position_embeddings``. ``rotary_dim`` elements of each head are rotated, None for all of them. */
export interface RopeSpec {
  readonly theta: number;
  readonly scaling: "none" | "linear" | "llama3";
  readonly factor: number;
  readonly low_freq_factor: number;
  readonly high_freq_factor: number;
  readonly original_max_position_embeddings: number;
  readonly rotary_dim: number | null;
}

/** A pre-norm decoder with grouped-query attention and a gated feed-forward. Sizes in elements. ``windows`` has one entry a layer: how many tokens it sees, its own included, or None for all; empty if all layers see all tokens. ``activation`` is that of the gate, one of `ops.op.ACTIVATIONS`. */
export interface ModelSpec {
  readonly model_type: string;
  readonly vocab_size: number;
  readonly hidden_size: number;
  readonly num_layers: number;
  readonly num_heads: number;
  readonly num_kv_heads: number;
  readonly head_dim: number;
  readonly intermediate_size: number;
  readonly max_position_embeddings: number;
  readonly rms_norm_eps: number;
  readonly rope: RopeSpec;
  readonly tie_word_embeddings: boolean;
  readonly qkv_bias: boolean;
  readonly output_bias: boolean;
  readonly mlp_bias: boolean;
  readonly qk_norm: boolean;
  readonly windows: readonly (number | null)[];
  readonly activation: string;
  readonly bos_token_id: number | null;
  readonly eos_token_ids: readonly number[];
}

/** How a text's vector is made of the final norm's rows: that of its last token, scaled to length 1 where ``normalize`` says so. */
export interface EmbeddingSpec {
  readonly pooling: "last_token";
  readonly normalize: boolean;
}

/** A file of the bundle. ``size`` in bytes; ``sha256`` in hexadecimal. */
export interface FileEntry {
  readonly file: string;
  readonly size: number;
  readonly sha256: string;
}

/** One plane of a weight: ``size`` bytes at ``offset`` of shard number ``shard``. */
export interface PlaneEntry {
  readonly name: string;
  readonly dtype: "float32" | "float16" | "uint32";
  readonly shape: readonly number[];
  readonly shard: number;
  readonly offset: number;
  readonly size: number;
}

/** A weight. ``quantization`` is None for vectors, which are one float32 plane "w". ``layout`` is how its planes (N, W) lie in memory. "rows": row after row. "tiles16": (ceil(N/16), W, 16), tiles of 16 rows with the same element of all rows side by side, rows beyond N being zeros. */
export interface WeightEntry {
  readonly shape: readonly number[];
  readonly quantization: string | null;
  readonly layout: "rows" | "tiles16";
  readonly planes: readonly PlaneEntry[];
}

/** An array that a runtime allocates. "activation" is the dtype of the chosen activation entry. */
export interface BufferEntry {
  readonly shape: readonly Expr[];
  readonly dtype: "float32" | "int32" | "uint32" | "activation";
}

/** An array that comes with every batch. */
export interface InputEntry {
  readonly shape: readonly Expr[];
  readonly dtype: "float32" | "int32" | "uint32";
}

/** An array that a runtime computes. "rope": (positions, R/2, 2) float32, ``scale`` times cosine and sine of position * inverse_frequencies[i]. */
export interface ConstantEntry {
  readonly kind: "rope";
  readonly shape: readonly number[];
  readonly inverse_frequencies: readonly number[];
  readonly scale: number;
}

/** One step. ``inputs`` and ``outputs`` map roles to names of buffers, inputs, states, constants or weights. ``variants`` names the list of kernels that can run it. */
export interface StepEntry {
  readonly op: string;
  readonly variants: string;
  readonly inputs: Readonly<Record<string, string>>;
  readonly outputs: Readonly<Record<string, string>>;
  readonly attrs: Readonly<Record<string, unknown>>;
}

/** See `plan.Plan`. ``inputs`` are all that a batch must bring. ``outputs`` maps to the buffers that hold them. Plan "generate" gives "logits" (R, V), "next_token_ids" and "token_logprobs" (R,), "top_token_ids" and "top_logprobs" (W, up to 20); plan "embed" gives "embeddings" (R, E), float32 and not normalised. */
export interface PlanEntry {
  readonly inputs: Readonly<Record<string, InputEntry>>;
  readonly states: Readonly<Record<string, BufferEntry>>;
  readonly constants: Readonly<Record<string, ConstantEntry>>;
  readonly buffers: Readonly<Record<string, BufferEntry>>;
  readonly steps: readonly StepEntry[];
  readonly outputs: Readonly<Record<string, string>>;
}

/** The buffer at a binding: the step's input or output ``role``, and of a weight the ``plane``. Role "scratch" is the manifest's scratch buffer that ``plane`` names. */
export interface BindingEntry {
  readonly role: string;
  readonly plane: string | null;
  readonly access: "read" | "write";
}

/** One kernel: what its ``template`` writes for its ``facts``, from which its name is made. ``uniforms`` are the 32-bit integers of its uniform buffer, which follows the last of ``bindings``. ``grid`` counts workgroups in x and y. Where x exceeds 65,535, the rest goes to z: the kernel takes z * gridDim.x + x. Of a CPU's shared library ``entry`` is a function of TVM FFI's calling convention: addresses of the bindings, then the uniforms. */
export interface KernelEntry {
  readonly template: string;
  readonly facts: Readonly<Record<string, unknown>>;
  readonly file: string;
  readonly sha256: string;
  readonly entry: string;
  readonly bindings: readonly BindingEntry[];
  readonly uniforms: readonly Expr[];
  readonly grid: readonly Expr[];
  readonly workgroup_size: number;
}

/** One way to run a step: ``kernels`` one after the other. The first row that fits is taken; a later row with the same condition is an alternative, for a tuner to put first. ``activation`` None fits both dtypes, ``when`` None every batch. ``needs`` names features of the device ("subgroups", "avx512") and of its shading language ("subgroup_id"). */
export interface VariantEntry {
  readonly kernels: readonly string[];
  readonly activation: "float32" | "float16" | "bfloat16" | "int8" | null;
  readonly needs: readonly string[];
  readonly when: Condition;
}

/** An activation dtype, and the device features without which a runtime takes the next entry. */
export interface ActivationEntry {
  readonly dtype: "float32" | "float16" | "bfloat16" | "int8";
  readonly needs: readonly string[];
}

/** Where a module's low-rank matrices go: A to rows [part * rank, ..) of state ``a``, B to rows [start, stop) of state ``b``. Of B these are the rows from ``first_row`` on, times ``factor``. */
export interface LoraModule {
  readonly a: string;
  readonly b: string;
  readonly part: number;
  readonly start: number;
  readonly stop: number;
  readonly first_row: number;
  readonly factor: number;
}

/** LoRA adapters up to a ``rank``. ``modules`` are named as in the checkpoint: "model.layers.0.self_attn.q_proj". A module whose rows go to several projections has an entry for each of them. */
export interface LoraEntry {
  readonly rank: number;
  readonly modules: Readonly<Record<string, readonly LoraModule[]>>;
}

/** ``chat_template`` is Jinja, as Hugging Face writes it; None where the model has none. The tokens are those that templates may name. ``add_bos_token`` None leaves it to the tokenizer's file whether a text starts with the bos token. */
export interface TokenizerEntry {
  readonly file: string;
  readonly chat_template: string | null;
  readonly bos_token: string | null;
  readonly eos_token: string | null;
  readonly pad_token: string | null;
  readonly unk_token: string | null;
  readonly add_bos_token: boolean | null;
}

/** What the reference gives after row ``row`` of the prompt: the ``logits`` of ``token_ids``, and log(sum(exp(logits))) over all. */
export interface SelfTestRow {
  readonly row: number;
  readonly token_ids: readonly number[];
  readonly logits: readonly number[];
  readonly logsumexp: number;
}

/** A prompt, and what the reference computes for it with float32 activations. ``tolerances``: for each activation dtype, how far a device may be off, relative to the largest magnitude among all ``rows``. */
export interface SelfTestEntry {
  readonly prompt_ids: readonly number[];
  readonly rows: readonly SelfTestRow[];
  readonly tolerances: Readonly<Record<string, number>>;
}

/** A GPU as browsers name it (W3C, WebGPU, GPUAdapterInfo); "" is what a browser keeps to itself. */
export interface AdapterEntry {
  readonly vendor: string;
  readonly architecture: string;
  readonly device: string;
  readonly description: string;
}

/** Where ``when`` holds, ``variant`` is the fastest: a row of the list, by the names of its kernels joined with "+". */
export interface TunedRow {
  readonly when: Condition;
  readonly variant: string;
}

/** What was measured on one adapter with one activation dtype: rows that go in front of those of some variants lists. */
export interface TuningEntry {
  readonly adapter: AdapterEntry;
  readonly activation: "float32" | "float16" | "bfloat16" | "int8";
  readonly variants: Readonly<Record<string, readonly TunedRow[]>>;
}

/** What every bundle's manifest says, whatever runs it. ``context``: the longest sequence in tokens. ``page_size``: tokens of a page. ``kv`` is the format of keys and values: "activation", as computed, or "q8", 8-bit integers. ``embedding`` is None where the model generates text. */
export interface Description {
  readonly format_version: number;
  readonly generator: string;
  readonly target: string;
  readonly model: string;
  readonly spec: ModelSpec;
  readonly embedding: EmbeddingSpec | null;
  readonly quantization: string;
  readonly context: number;
  readonly page_size: number;
  readonly kv: "activation" | "q8";
  readonly tokenizer: TokenizerEntry;
  readonly files: readonly FileEntry[];
}

/** A bundle in a framework's own form, which the framework's own tools load; ``files`` are all that is in it. A page holds a whole sequence: ``page_size`` is ``context``. ``device`` is what the graph was made for, None where the framework asks for no choice; ``activation`` the dtype of activations, keys and values. ``group_size``: weights that share a scale, None where they are not quantized. */
export interface ExportManifest {
  readonly format_version: number;
  readonly generator: string;
  readonly target: string;
  readonly model: string;
  readonly spec: ModelSpec;
  readonly embedding: EmbeddingSpec | null;
  readonly quantization: string;
  readonly context: number;
  readonly page_size: number;
  readonly kv: "activation" | "q8";
  readonly tokenizer: TokenizerEntry;
  readonly files: readonly FileEntry[];
  readonly device: string | null;
  readonly activation: "float32" | "float16" | "bfloat16";
  readonly group_size: number | null;
}

/** A bundle with plans and kernels. ``files`` are those beside kernels and shards. ``plans`` has one entry for each thing that the bundle can do: "generate" text or "embed" it. A name means the same array in all plans, so plans share weights, constants and states, the pages of keys and values among them. ``arch`` is what the kernels were compiled for, None where they are source that any device of the target takes. Keys and values are states. "activation": pages (P, 2, K, page_size, D) of the activation dtype, keys, then values. "q8": (P, 2, K, page_size, D/4 + 1) uint32: for each page, plane and kv head D int8 codes of every row, four a word, the first lowest, then the bits of every row's float32 scale. ``scratch`` are buffers through which the kernels of one step pass values on; all steps share them. ``self_test`` is None where the compiler was asked to leave it out, and for models that embed; ``tuning`` holds one entry an adapter and activation dtype. ``lora`` is None where the bundle takes no adapters. */
export interface Manifest {
  readonly format_version: number;
  readonly generator: string;
  readonly target: string;
  readonly model: string;
  readonly spec: ModelSpec;
  readonly embedding: EmbeddingSpec | null;
  readonly quantization: string;
  readonly context: number;
  readonly page_size: number;
  readonly kv: "activation" | "q8";
  readonly tokenizer: TokenizerEntry;
  readonly files: readonly FileEntry[];
  readonly arch: string | null;
  readonly lora: LoraEntry | null;
  readonly activations: readonly ActivationEntry[];
  readonly plans: Readonly<Record<string, PlanEntry>>;
  readonly variants: Readonly<Record<string, readonly VariantEntry[]>>;
  readonly scratch: Readonly<Record<string, BufferEntry>>;
  readonly kernels: Readonly<Record<string, KernelEntry>>;
  readonly weights: Readonly<Record<string, WeightEntry>>;
  readonly shards: readonly FileEntry[];
  readonly self_test: SelfTestEntry | null;
  readonly tuning: readonly TuningEntry[];
}

// Reads the manifest and checks it key by key, so that this package understands all of it.
//
// The checks below repeat manifest.ts as data, because types do not exist at run time; the type checker reports a
// missing key.

import { BundleError } from "../errors.js";
import type { AnyManifest } from "./any_manifest.js";
import { MANIFEST_FILE } from "./any_manifest.js";
import type {
  ActivationEntry,
  AdapterEntry,
  BindingEntry,
  BufferEntry,
  ChatTreeEntry,
  ClassifierSpec,
  ConstantEntry,
  Description,
  EmbeddingSpec,
  ExportManifest,
  FileEntry,
  GatheredEntry,
  InputEntry,
  KernelEntry,
  LoraEntry,
  LoraModule,
  Manifest,
  ModelSpec,
  PlanEntry,
  PlaneEntry,
  PromptSpec,
  RotaryPairs,
  SelfTestEntry,
  SelfTestRow,
  StepEntry,
  TokenizerEntry,
  ToolFormatEntry,
  TunedRow,
  TuningEntry,
  VariantEntry,
  VectorTestEntry,
  VectorTestRow,
  WeightEntry,
} from "./manifest.js";
import { DIMS, FORMAT_VERSION } from "./manifest.js";
import { disagreement } from "./check_agreement.js";
import { isComparison, isOperator } from "./expr.js";
import { readFile, sha256 } from "./read_file.js";
import { wrongPart } from "../shared/template/check_tree.js";
import type { Source } from "./source.js";

/**
 * Throws BundleError if the manifest is missing, is not JSON, has another format version or target, or has missing or
 * unknown keys.
 */
export async function loadManifest(source: Source, signal: AbortSignal): Promise<AnyManifest> {
  const text = new TextDecoder().decode(await readFile(source, { file: MANIFEST_FILE }, signal));
  let data: unknown;
  try {
    data = JSON.parse(text);
  } catch (error) {
    throw new BundleError(
      `${MANIFEST_FILE}: is not JSON (it starts with ${JSON.stringify(text.slice(0, 20))}); check that ${source.location} is a bundle's folder`,
      { file: MANIFEST_FILE },
      { cause: error },
    );
  }
  const manifest = checkManifest(data);
  await checkTemplate(manifest.tokenizer);
  return manifest;
}

/** A chat template that was edited in the manifest would be rendered by its old tree. */
async function checkTemplate({ chat_template: template, chat_tree: tree }: TokenizerEntry): Promise<void> {
  if (tree === null || tree.template_sha256 === (await sha256(new TextEncoder().encode(template ?? "")))) return;
  throw new BundleError(
    `${MANIFEST_FILE}: tokenizer.chat_template has changed since chat_tree was made of it; change the checkpoint's template, and compile the bundle again`,
    { file: MANIFEST_FILE, key: "tokenizer.chat_template" },
  );
}

export function checkManifest(data: unknown): AnyManifest {
  if (!isRecord(data)) throw wrong("", "an object", data);
  if (data.format_version !== FORMAT_VERSION) {
    const found = describe(data.format_version);
    throw new BundleError(
      `${MANIFEST_FILE}: has format version ${found}, this @nearfar/web reads ${FORMAT_VERSION}; compile the bundle again, or use the @nearfar/web of its release`,
      { file: MANIFEST_FILE, found, expected: FORMAT_VERSION },
    );
  }
  if (data.target !== "webgpu" && data.target !== "onnx") {
    const found = describe(data.target);
    throw new BundleError(
      `${MANIFEST_FILE}: is for target ${found}; this package runs "webgpu" and "onnx": compile with --target webgpu`,
      {
        file: MANIFEST_FILE,
        found,
      },
    );
  }
  const manifest = data as unknown as AnyManifest;
  (data.target === "onnx" ? EXPORT_MANIFEST : MANIFEST)(data, "");
  const [path, value] = disagreement(manifest) ?? [];
  if (path !== undefined) throw wrong(path, "consistent with the rest of the manifest", value);
  return manifest;
}

type Check = (value: unknown, path: string) => void;
/** One check for each key of an entry. */
type Checks<T> = Readonly<Record<keyof T, Check>>;

const text: Check = (value, path) => {
  if (typeof value !== "string") throw wrong(path, "a string", value);
};
const number: Check = (value, path) => {
  if (!Number.isFinite(value)) throw wrong(path, "a number", value);
};
const int: Check = (value, path) => {
  if (!Number.isSafeInteger(value) || (value as number) < 0) throw wrong(path, "an integer", value);
};
const count: Check = (value, path) => {
  int(value, path);
  if ((value as number) < 1 || (value as number) >= 2 ** 31) throw wrong(path, "a count", value);
};
const matching =
  (pattern: RegExp, what: string): Check =>
  (value, path) => {
    if (typeof value !== "string" || !pattern.test(value)) throw wrong(path, what, value);
  };
// As in compiler/bundle/file_name.py: no "..", scheme, drive, query or percent code.
const fileName = matching(/^(?=.{1,255}$)\w[\w.-]*(?:\/\w[\w.-]*)*$/, "a plain name");
const hash = matching(/^[0-9a-f]{64}$/, "a SHA-256");
const dim: Check = (value, path) => {
  if (!DIMS.includes(value as string)) throw wrong(path, "a dim", value);
};
const flag: Check = (value, path) => {
  if (typeof value !== "boolean") throw wrong(path, "true or false", value);
};
// Deeper nesting is refused, so that no manifest exhausts the stack.
const MAX_PATH = 2000;
const expr: Check = (value, path) => {
  if (!Array.isArray(value)) {
    (typeof value === "string" ? dim : int)(value, path);
    return;
  }
  if (value.length !== 3 || !isOperator(value[0]) || path.length > MAX_PATH)
    throw wrong(path, "a size expression", value);
  expr(value[1], `${path}[1]`);
  (value[0] === "ceildiv" ? count : expr)(value[2], `${path}[2]`);
};
const condition: Check = (value, path) => {
  if (value === null) return;
  if (
    !Array.isArray(value) ||
    value.length !== 3 ||
    (value[0] !== "and" && !isComparison(value[0])) ||
    path.length > MAX_PATH
  )
    throw wrong(path, "a condition", value);
  const operand = value[0] === "and" ? condition : expr;
  operand(value[1], `${path}[1]`);
  operand(value[2], `${path}[2]`);
};
const anything: Check = () => undefined;
const tree: Check = (value, path) => {
  const wrongPath = wrongPart(value);
  if (wrongPath !== null) throw wrong(path + wrongPath, "a part of a template's syntax tree", partAt(value, wrongPath));
};

const oneOf =
  (...choices: readonly string[]): Check =>
  (value, path) => {
    if (!choices.some((choice) => choice === value))
      throw wrong(path, choices.map((choice) => `"${choice}"`).join(" or "), value);
  };
const nullable =
  (check: Check): Check =>
  (value, path) => {
    if (value !== null) check(value, path);
  };
const list =
  (check: Check): Check =>
  (value, path) => {
    if (!Array.isArray(value)) throw wrong(path, "a list", value);
    value.forEach((item, index) => {
      check(item, `${path}[${index}]`);
    });
  };
const table =
  (check: Check): Check =>
  (value, path) => {
    if (!isRecord(value)) throw wrong(path, "an object", value);
    for (const [key, item] of Object.entries(value)) check(item, `${path}.${key}`);
  };
const entry =
  <T>(checks: Checks<T>): Check =>
  (value, path) => {
    if (!isRecord(value)) throw wrong(path, "an object", value);
    const here = path === "" ? "" : `${path}.`;
    for (const key of Object.keys(value)) {
      if (!Object.hasOwn(checks, key)) {
        throw new BundleError(
          `${MANIFEST_FILE}: key '${here}${key}' is not known here; use the @nearfar/web of the bundle's release`,
          {
            file: MANIFEST_FILE,
            key: here + key,
          },
        );
      }
    }
    for (const [key, check] of Object.entries<Check>(checks)) check(value[key], here + key);
  };

const FILE = entry<FileEntry>({ file: fileName, size: int, sha256: hash });
const BUFFER = entry<BufferEntry>({ shape: list(expr), dtype: oneOf("float32", "int32", "uint32", "activation") });
const SPEC = entry<ModelSpec>({
  model_type: text,
  vocab_size: count,
  hidden_size: count,
  num_layers: count,
  num_heads: count,
  num_kv_heads: count,
  head_dim: count,
  intermediate_size: count,
  max_position_embeddings: count,
  rms_norm_eps: number,
  // Constants hold the rotations' frequencies.
  rope: anything,
  window_rope: anything,
  tie_word_embeddings: flag,
  qkv_bias: flag,
  output_bias: flag,
  mlp_bias: flag,
  qk_norm: flag,
  windows: list(nullable(int)),
  activation: text,
  unrotated: list(int),
  attention_scale: nullable(number),
  attention_softcap: nullable(number),
  logit_softcap: nullable(number),
  logit_scale: number,
  embedding_scale: number,
  residual_scale: number,
  window_head_dim: nullable(count),
  window_num_kv_heads: nullable(count),
  num_kv_shared_layers: int,
  shared_intermediate_size: nullable(count),
  per_layer_size: int,
  per_layer_vocab_size: int,
  causal: flag,
  first_position: int,
  num_token_types: int,
  bos_token_id: nullable(int),
  eos_token_ids: list(int),
});
const PLAN = entry<PlanEntry>({
  inputs: table(entry<InputEntry>({ shape: list(expr), dtype: oneOf("float32", "int32", "uint32") })),
  states: table(BUFFER),
  constants: table(
    entry<ConstantEntry>({ kind: oneOf("rope"), shape: list(count), inverse_frequencies: list(number), scale: number }),
  ),
  buffers: table(BUFFER),
  steps: list(
    entry<StepEntry>({ op: text, variants: text, inputs: table(text), outputs: table(text), attrs: table(anything) }),
  ),
  outputs: table(text),
  gathered: table(entry<GatheredEntry>({ weights: list(text), scale: number })),
});
const VARIANT = entry<VariantEntry>({
  kernels: list(text),
  activation: nullable(oneOf("float32", "float16")),
  needs: list(text),
  when: condition,
});
const KERNEL = entry<KernelEntry>({
  template: text,
  facts: table(anything),
  file: fileName,
  sha256: hash,
  entry: text,
  bindings: list(entry<BindingEntry>({ role: text, plane: nullable(text), access: oneOf("read", "write") })),
  uniforms: list(expr),
  grid: list(expr),
  workgroup_size: int,
  shared_bytes: int,
});
const WEIGHT = entry<WeightEntry>({
  shape: list(count),
  quantization: nullable(text),
  // WebGPU kernels read no other layout.
  layout: oneOf("rows"),
  planes: list(
    entry<PlaneEntry>({
      name: text,
      dtype: oneOf("float32", "float16", "uint32", "int8"),
      shape: list(count),
      shard: int,
      offset: int,
      size: int,
    }),
  ),
});
const SELF_TEST = entry<SelfTestEntry>({
  prompt_ids: list(int),
  rows: list(entry<SelfTestRow>({ row: int, token_ids: list(int), logits: list(number), logsumexp: number })),
  tolerances: table(number),
});
const TUNING = entry<TuningEntry>({
  adapter: entry<AdapterEntry>({ vendor: text, architecture: text, device: text, description: text }),
  activation: oneOf("float32", "float16"),
  variants: table(list(entry<TunedRow>({ when: condition, variant: text }))),
});
/** The keys of every bundle's manifest. */
const DESCRIPTION: Checks<Description> = {
  format_version: int,
  generator: text,
  target: text,
  model: text,
  spec: SPEC,
  embedding: nullable(
    entry<EmbeddingSpec>({
      pooling: text,
      normalize: flag,
      size: count,
      // The plan contains the dense layers.
      dense: anything,
      prompts: list(entry<PromptSpec>({ name: text, text })),
      default_prompt: nullable(text),
      dimensions: list(count),
    }),
  ),
  classifier: nullable(
    entry<ClassifierSpec>({
      labels: list(text),
      activation: oneOf("none", "sigmoid", "softmax"),
      per_token: flag,
      pooling: text,
      relevance: nullable(int),
      template: nullable(text),
      instruction: nullable(text),
    }),
  ),
  quantization: text,
  context: count,
  page_size: count,
  kv: oneOf("activation", "q8", "q4"),
  tokenizer: entry<TokenizerEntry>({
    file: fileName,
    chat_template: nullable(text),
    chat_tree: nullable(entry<ChatTreeEntry>({ tree, template_sha256: hash, content: oneOf("text", "parts") })),
    bos_token: nullable(text),
    eos_token: nullable(text),
    pad_token: nullable(text),
    unk_token: nullable(text),
    add_bos_token: nullable(flag),
    tools: nullable(
      entry<ToolFormatEntry>({
        name: text,
        marker: text,
        begin: text,
        before_name: text,
        before_arguments: text,
        after_arguments: text,
        separator: nullable(text),
        end: text,
        close: text,
        arguments: oneOf("json", "gemma", "xml"),
        lead: text,
        gap: text,
        tokens: list(text),
      }),
    ),
  }),
  files: list(FILE),
};
const MANIFEST = entry<Manifest>({
  ...DESCRIPTION,
  arch: nullable(text),
  lora: nullable(
    entry<LoraEntry>({
      rank: int,
      modules: table(
        list(
          entry<LoraModule>({
            a: text,
            b: text,
            part: int,
            start: int,
            stop: int,
            first_row: int,
            factor: number,
            pairs: nullable(entry<RotaryPairs>({ head_dim: count, rotary_dim: count })),
          }),
        ),
      ),
    }),
  ),
  activations: list(entry<ActivationEntry>({ dtype: oneOf("float32", "float16"), needs: list(text) })),
  plans: table(PLAN),
  variants: table(list(VARIANT)),
  scratch: table(BUFFER),
  kernels: table(KERNEL),
  weights: table(WEIGHT),
  host_weights: table(WEIGHT),
  shards: list(FILE),
  self_test: nullable(SELF_TEST),
  vector_test: nullable(
    entry<VectorTestEntry>({
      texts: list(list(int)),
      rows: list(entry<VectorTestRow>({ row: int, elements: list(int), values: list(number) })),
      tolerances: table(number),
    }),
  ),
  tuning: list(TUNING),
});
const EXPORT_MANIFEST = entry<ExportManifest>({
  ...DESCRIPTION,
  kv: oneOf("activation", "q8"),
  device: nullable(text),
  activation: oneOf("float32", "float16"),
  group_size: nullable(int),
});

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function wrong(path: string, expected: string, value: unknown): BundleError {
  const location = path === "" ? "" : `${path} `;
  return new BundleError(
    `${MANIFEST_FILE}: ${location}must be ${expected}, not ${describe(value)}; compile the bundle again`,
    {
      file: MANIFEST_FILE,
      key: path,
    },
  );
}

/** ``path``: indices, as "[1][0]". */
function partAt(value: unknown, path: string): unknown {
  return (path.match(/\d+/g) ?? []).reduce((part, index) => (part as readonly unknown[])[Number(index)], value);
}

function describe(value: unknown): string {
  try {
    return value === undefined ? "missing" : JSON.stringify(value).slice(0, 60);
  } catch {
    // The value has more levels than the stack allows.
    return "a value with too many levels";
  }
}

// Reads LoRA adapters that PEFT wrote (adapter_config.json and adapter_model.safetensors) into the form of a bundle's
// states. compiler/formats/peft.py does the same in Python; tests/conformance/adapters.json holds for both.
// https://huggingface.co/docs/peft/developer_guides/checkpoint

import type { AdapterStates } from "../engine/adapters.js";
import { BundleError, RequestError, messageOf } from "../errors.js";
import { elements } from "../runtime/expr.js";
import type { AnyManifest } from "../runtime/any_manifest.js";
import { isExport } from "../runtime/any_manifest.js";
import type { LoraEntry, LoraModule, Manifest } from "../runtime/manifest.js";
import { planOf } from "../runtime/plan.js";
import { sha256 } from "../runtime/read_file.js";
import { readSafetensors } from "./safetensors.js";

/** The contents of adapter_config.json and of adapter_model.safetensors. */
export interface AdapterFiles {
  readonly config: string;
  readonly weights: Uint8Array<ArrayBuffer> | ArrayBuffer | Blob;
}

/** ``id`` depends on the values alone. */
export interface ReadAdapter {
  readonly id: string;
  readonly states: AdapterStates;
}

const CONFIG = "adapter_config.json";
const WEIGHTS = "adapter_model.safetensors";
/** A pattern of PEFT that is the name of modules, or the end of one: no other regular expression is supported. */
const MODULE_NAME = /^(\^?)(\w+(?:\\?\.\w+)*)$/;
/** The names below which text models are inside others; see `compiler/formats/multimodal.py`. */
const WRAPPERS = /^(backbone|model\.language_model|model\.text_model|language_model\.model)\./;
const TENSOR = /^base_model\.model\.(.+)\.lora_([AB])\.weight$/;
/** Keys that say how an adapter was trained and which modules it has, beside those that are read. */
const KNOWN = new Set(
  (
    "peft_type r lora_alpha use_rslora rank_pattern alpha_pattern task_type auto_mapping peft_version " +
    "base_model_name_or_path revision inference_mode target_modules exclude_modules layers_to_transform " +
    "layers_pattern lora_dropout megatron_config megatron_core loftq_config eva_config corda_config lora_ga_config " +
    "velora_config qalora_group_size ensure_weight_tying runtime_config"
  ).split(" "),
);
/** Values that leave the mathematics as they are, as JSON; `compiler/formats/peft.py` says more. */
const EMPTY = ["null", "false", "0", '""', "[]", "{}"];
const PLAIN: Readonly<Record<string, readonly string[]>> = {
  bias: ['"none"'],
  init_lora_weights: ["true", '"gaussian"', '"eva"', '"orthogonal"', '"mica"'],
};

/** Throws RequestError for an adapter that the bundle does not accept, BundleError, or the signal's reason. */
export async function readAdapter(
  source: string | URL | AdapterFiles,
  manifest: AnyManifest,
  signal?: AbortSignal,
): Promise<ReadAdapter> {
  const files = typeof source === "string" || source instanceof URL ? await download(source, signal) : source;
  const weights = new Uint8Array(files.weights instanceof Blob ? await files.weights.arrayBuffer() : files.weights);
  const lora = isExport(manifest) ? null : manifest.lora;
  if (isExport(manifest) || lora === null)
    throw new RequestError(`${manifest.model}: does not accept LoRA adapters; compile it with --lora-rank`);
  const states = fillStates(manifest, lora, files.config, weights);
  const id = await sha256(new TextEncoder().encode(`${files.config}${await sha256(weights)}`));
  return { id, states };
}

async function download(address: string | URL, signal?: AbortSignal): Promise<AdapterFiles> {
  const folder = String(address).replace(/\/?$/, "/");
  const base = typeof document === "undefined" ? undefined : document.baseURI;
  const read = async (name: string): Promise<Response> => {
    const url = new URL(name, new URL(folder, base));
    let response: Response;
    try {
      response = await fetch(url, { signal: signal ?? null });
    } catch (error) {
      signal?.throwIfAborted();
      throw new BundleError(
        `${url.href}: cannot be loaded (${messageOf(error)}); check the address`,
        {},
        { cause: error },
      );
    }
    if (!response.ok)
      throw new BundleError(`${url.href}: the server answers ${response.status}; check the address`, {
        status: response.status,
      });
    return response;
  };
  const [config, weights] = await Promise.all([read(CONFIG), read(WEIGHTS)]);
  return { config: await config.text(), weights: await weights.arrayBuffer() };
}

/** One slot's rows of every state: A (parts * rank, K), B (N, rank), with the adapter's scale in B. */
export function fillStates(
  manifest: Pick<Manifest, "model" | "plans">,
  lora: LoraEntry,
  config: string,
  weights: Uint8Array<ArrayBuffer>,
): AdapterStates {
  const numbersOf = readConfig(config, lora);
  const tensors = readSafetensors(weights, WEIGHTS);
  const shapes = new Map<string, readonly number[]>();
  const states = new Map<string, Float32Array<ArrayBuffer>>();
  for (const part of Object.values(lora.modules).flat())
    for (const name of [part.a, part.b]) {
      const shape = (planOf(manifest as Manifest).states[name]?.shape ?? [])
        .slice(1)
        .map((size) => elements([size], {}));
      shapes.set(name, shape);
      states.set(name, new Float32Array(shape.reduce((product, size) => product * size, 1)));
    }
  for (const [name, tensor] of tensors) {
    const [, module = "", letter] = TENSOR.exec(name) ?? [];
    if (letter === undefined)
      throw new RequestError(
        `${WEIGHTS}: tensor '${name}' is not a LoRA matrix of a layer's projection, and no other is supported`,
      );
    const parts = lora.modules[module.replace(WRAPPERS, "model.")];
    const [first] = parts ?? [];
    if (parts === undefined || first === undefined) {
      const known = new Set(Object.keys(lora.modules).map((each) => each.slice(each.lastIndexOf(".") + 1)));
      throw new RequestError(
        `${WEIGHTS}: adapts ${module}; of ${manifest.model}, ` +
          `adapters can change ${[...known].sort().join(", ")} of its layers alone`,
      );
    }
    if (!tensors.has(name.replace(/lora_[AB]/, letter === "A" ? "lora_B" : "lora_A")))
      throw new BundleError(
        `${WEIGHTS}: ${module} has lora_${letter} but not the other matrix; the file is incomplete`,
      );
    const { rank, scale } = numbersOf(module);
    const columns = shapes.get(first.a)?.[1] ?? 0;
    const rows = Math.max(...parts.map((part) => part.first_row + part.stop - part.start));
    const expected = letter === "A" ? [rank, columns] : [rows, rank];
    if (tensor.shape.join() !== expected.join())
      throw new RequestError(
        `${WEIGHTS}: ${name} has shape [${tensor.shape.join(", ")}], but ${manifest.model} needs ` +
          `[${expected.join(", ")}]; the adapter was trained for another model`,
      );
    const values = tensor.values();
    if (!values.every(Number.isFinite))
      throw new BundleError(`${WEIGHTS}: ${name} holds values that are not numbers; train the adapter again`);
    for (const part of parts) {
      if (letter === "A") states.get(part.a)?.set(values, part.part * lora.rank * columns);
      else fillRows(states.get(part.b), part, values, { rank, widest: lora.rank, scale });
    }
  }
  return states;
}

function fillRows(
  state: Float32Array | undefined,
  part: LoraModule,
  values: Float32Array,
  { rank, widest, scale }: { readonly rank: number; readonly widest: number; readonly scale: number },
): void {
  const factor = Math.fround(scale * part.factor);
  for (let row = part.start; row < part.stop; row++) {
    const stored = storedRow(part, part.first_row + row - part.start);
    for (let column = 0; column < rank; column++)
      if (state) state[row * widest + column] = (values[stored * rank + column] ?? 0) * factor;
  }
}

/** The row of the checkpoint's tensor that is this row in the order of the rotate-half form; see rotary_pairs.py. */
function storedRow({ pairs }: LoraModule, row: number): number {
  if (pairs === null) return row;
  const element = row % pairs.head_dim;
  const half = pairs.rotary_dim >> 1;
  return element >= pairs.rotary_dim ? row : row - element + 2 * (element % half) + Math.floor(element / half);
}

/** The rank of a module, and the factor of its contribution. */
type NumbersOf = (module: string) => { readonly rank: number; readonly scale: number };

function readConfig(text: string, lora: LoraEntry): NumbersOf {
  const config = parse(text);
  if (config.peft_type !== "LORA")
    throw new RequestError(`${CONFIG}: peft_type is ${JSON.stringify(config.peft_type)}; supported: LORA`);
  for (const [key, value] of Object.entries(config)) {
    const text = JSON.stringify(value);
    if (!KNOWN.has(key) && !EMPTY.includes(text) && PLAIN[key]?.includes(text) !== true)
      throw new RequestError(
        `${CONFIG}: ${key} ${text} is not supported; train the adapter without it, or merge it into its model with ` +
          "PEFT's merge_and_unload",
      );
  }
  const { r: rank, lora_alpha: alpha, use_rslora: stabilized } = config;
  if (typeof rank !== "number" || !Number.isInteger(rank) || rank < 1 || typeof alpha !== "number")
    throw new BundleError(`${CONFIG}: r and lora_alpha must be numbers, r at least 1`);
  const ranks = readPatterns(config, "rank_pattern");
  const alphas = readPatterns(config, "alpha_pattern");
  for (const [pattern, each] of ranks)
    if (!Number.isInteger(each) || each < 1)
      throw new BundleError(`${CONFIG}: rank_pattern '${pattern}' has ${each}, but a rank is at least 1`);
  const widest = Math.max(rank, ...ranks.map(([, each]) => each));
  if (widest > lora.rank)
    throw new RequestError(
      `${CONFIG}: has rank ${widest}, but the bundle accepts ranks up to ${lora.rank}; ` +
        `compile it with --lora-rank ${widest}`,
    );
  return (module) => {
    const own = (patterns: Patterns): number | undefined => patterns.find(([pattern]) => fits(pattern, module))?.[1];
    const moduleRank = own(ranks) ?? rank;
    const divisor = stabilized === true ? Math.sqrt(moduleRank) : moduleRank;
    return { rank: moduleRank, scale: (own(alphas) ?? alpha) / divisor };
  };
}

/** The numbers of single modules; the first pattern that fits counts. */
type Patterns = readonly (readonly [string, number])[];

function readPatterns(config: Readonly<Record<string, unknown>>, key: string): Patterns {
  const found: unknown = config[key] ?? {};
  const entries = Object.entries(found as Readonly<Record<string, unknown>>);
  if (typeof found !== "object" || Array.isArray(found) || !entries.every(isNumbered))
    throw new BundleError(`${CONFIG}: ${key} ${JSON.stringify(found)} must be an object with numbers`);
  for (const [pattern] of entries)
    if (!MODULE_NAME.test(pattern))
      throw new RequestError(
        `${CONFIG}: ${key} has '${pattern}', which is not the name of a module; name each module instead`,
      );
  return entries as Patterns;
}

function isNumbered([, value]: readonly [string, unknown]): boolean {
  return typeof value === "number";
}

function fits(pattern: string, module: string): boolean {
  const [, whole, escaped = ""] = MODULE_NAME.exec(pattern) ?? [];
  const name = escaped.replaceAll("\\", "");
  return module === name || (whole === "" && module.endsWith(`.${name}`));
}

function parse(text: string): Readonly<Record<string, unknown>> {
  try {
    return Object(JSON.parse(text)) as Readonly<Record<string, unknown>>;
  } catch (error) {
    throw new BundleError(`${CONFIG}: is not JSON (${messageOf(error)}); upload it again`, {}, { cause: error });
  }
}

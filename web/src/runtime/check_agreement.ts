// Checks that a manifest is consistent before anything is fetched or allocated: names are defined, planes are inside
// the shards, and tokens are in the vocabulary. compiler/bundle/check.py checks the same, and also the shapes of steps;
// here WebGPU keeps kernels inside their buffers.

import type { AnyManifest } from "./any_manifest.js";
import { isTable } from "./host_tables.js";
import type { Manifest } from "./manifest.js";

/** The limit bounds the loops over the layers, before any file is read. */
const MAX_LAYERS = 10_000;
/** The limit of the context and the vocabulary, for which arrays are allocated before any file is read. */
const MAX_LENGTH = 2 ** 24;

/**
 * The path of an inconsistent value, and the value; null if all values are consistent. The types of all values must be checked
 * already.
 */
export function disagreement(manifest: AnyManifest): readonly [what: string, value: unknown] | null {
  const { spec, files, tokenizer, context } = manifest;
  if (spec.num_layers > MAX_LAYERS) return ["spec.num_layers", spec.num_layers];
  if (spec.num_heads % spec.num_kv_heads > 0) return ["spec.num_heads", spec.num_heads];
  const { tile_patches: patches = 1 } = spec.vision ?? {};
  if (!isLength(patches)) return ["spec.vision", patches];
  if (!isLength(spec.audio?.positions ?? 1)) return ["spec.audio", spec.audio];
  if (spec.vocab_size > MAX_LENGTH) return ["spec.vocab_size", spec.vocab_size];
  if (context > MAX_LENGTH || context > spec.max_position_embeddings) return ["context", context];
  if (!files.some(({ file }) => file === tokenizer.file)) return ["tokenizer.file", tokenizer.file];
  return "plans" in manifest ? ofPlans(manifest) : null;
}

/** The fields of some specs are not checked before. */
const isLength = (value: number): boolean => Number.isInteger(value) && value > 0 && value <= MAX_LENGTH;

function ofPlans({
  spec,
  weights,
  host_weights: tables,
  shards,
  plans,
  kernels,
  variants,
  scratch,
  context,
  self_test: test,
  vector_test: vectors,
  embedding,
  classifier,
  ctc,
}: Manifest): readonly [string, unknown] | null {
  // Arrays by name, and by name and plane, as bindings refer to them.
  const common = Object.keys(scratch).map((name) => key("scratch", name));
  for (const [name, table] of Object.entries(tables)) if (!isTable(table)) return [`host_weights.${name}`, table.shape];
  for (const [name, { planes }] of [...Object.entries(weights), ...Object.entries(tables)]) {
    // Steps cannot name the weights of the host.
    const isOnDevice = Object.hasOwn(weights, name);
    if (isOnDevice) common.push(name);
    for (const { name: plane, offset, size, shape, dtype, shard } of planes) {
      if (isOnDevice) common.push(key(name, plane));
      if (size !== shape.reduce((bytes, length) => bytes * length, dtype === "int8" ? 1 : dtype === "float16" ? 2 : 4))
        return [`weights.${name}`, size];
      if (!(offset + size <= Number(shards[shard]?.size))) return [`weights.${name}`, offset];
    }
  }
  const [lists, sources] = [new Map(Object.entries(variants)), new Map(Object.entries(kernels))];
  for (const { inputs, states, constants, buffers, steps, outputs, gathered } of Object.values(plans)) {
    for (const [name, { weights: parts }] of Object.entries(gathered)) {
      const { shape, dtype } = inputs[name] ?? {};
      const widths = new Set(parts.map((part) => tables[part]?.shape[1]));
      const rows = parts.reduce((sum, part) => sum + Number(tables[part]?.shape[0]), 0);
      if (
        widths.size !== 1 ||
        !(rows >= spec.vocab_size) ||
        dtype !== "float32" ||
        shape?.join() !== `S,${[...widths].join()}`
      )
        return [`gathered.${name}`, shape];
    }
    for (const [name, { shape, inverse_frequencies: pairs }] of Object.entries(constants)) {
      const positions = Math.min(Number(shape[0]), Math.max(spec.max_position_embeddings, spec.audio?.positions ?? 0));
      if (shape.join() !== [positions, pairs.length, 2].join() || pairs.length > spec.head_dim)
        return [`constants.${name}`, shape];
    }
    // Otherwise the engine would count on no axes, and cut pictures that are seen as a whole.
    const { mrope_section: { length: axes } = [], both_ways: both = "none" } = spec.vision ?? {};
    if ((inputs.rope_positions && axes === 0) || (inputs.reach && both === "none")) return ["spec.vision", spec.vision];
    if (inputs.window_page_ids && !spec.windows.some((window) => (window ?? context) < context))
      return ["spec.windows", spec.windows];
    const arrays = new Set([...common, ...[inputs, states, constants, buffers].flatMap(Object.keys)]);
    for (const name of Object.values(outputs)) if (!Object.hasOwn(buffers, name)) return ["outputs", name];
    for (const step of steps) {
      const roles = new Map([...Object.entries(step.inputs), ...Object.entries(step.outputs)]);
      for (const name of roles.values()) if (!arrays.has(name)) return [step.op, name];
      for (const name of lists.get(step.variants)?.flatMap((row) => row.kernels) ?? [""]) {
        const kernel = sources.get(name);
        if (kernel === undefined) return [step.variants, name];
        for (const { role, plane } of kernel.bindings) {
          const array = role === "scratch" ? role : roles.get(role);
          if (array === undefined || !arrays.has(plane === null ? array : key(array, plane)))
            return [`kernels.${name}`, role];
        }
      }
    }
  }
  const ids = test?.prompt_ids ?? [];
  const sound = test?.rows.every(
    ({ row, logits, token_ids: own }) =>
      row < ids.length && logits.length === own.length && own.every((id) => id < spec.vocab_size),
  );
  if (sound === false || ids.some((id) => id >= spec.vocab_size)) return ["self_test", ids];
  if (vectors === null) return null;
  const { texts, rows } = vectors;
  const tokens = texts.flat();
  const columns = embedding?.size ?? classifier?.labels.length ?? (ctc === null ? 0 : spec.vocab_size);
  const count = ctc !== null || classifier?.per_token === true ? tokens.length : texts.length;
  // Without an expected value, or with only zeros, every result would pass.
  const compares =
    rows.some(({ values }) => values.some(Boolean)) &&
    rows.every(
      ({ row, elements: own, values }) =>
        row < count && own.length === values.length && own.every((element) => element < columns),
    );
  const readable =
    tokens.every((id) => id < spec.vocab_size) && texts.every(({ length }) => length > 0 && length <= context);
  return compares && readable ? null : ["vector_test", texts];
}

function key(array: string, plane: string): string {
  return JSON.stringify([array, plane]);
}

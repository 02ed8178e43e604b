// embeddings.create: computes the vectors of texts or token ids, in OpenAI's form.

import type { InputType } from "../api/encoder_types.js";
import type { Checks } from "../api/params.js";
import { readParams } from "../api/params.js";
import { anySignal } from "../api/stream.js";
import type { CreateEmbeddingResponse, EmbeddingCreateParams, RequestOptions } from "../api/types.js";
import { RequestError } from "../errors.js";
import type { EmbeddingSpec } from "../runtime/manifest.js";
import type { EncoderModel } from "./encoder_model.js";
import { TRUNCATION, TextReader, usageOf } from "./text_reader.js";

/** The names of prompts for a kind of texts, of which the first that a model has is used. */
export const QUERY_PROMPTS = ["query", "search_query", "Retrieval-query", "s2p_query"];
export const DOCUMENT_PROMPTS = ["document", "passage", "search_document", "Retrieval-document"];
const PROMPTS: Readonly<Record<InputType, readonly string[]>> = {
  search_query: QUERY_PROMPTS,
  search_document: DOCUMENT_PROMPTS,
  classification: ["classification", "Classification"],
  clustering: ["clustering", "Clustering"],
};

const PARAMS: Checks = {
  input: "any",
  encoding_format: "=float|base64",
  dimensions: "integer 1..",
  prompt_name: "string",
  input_type: `=${Object.keys(PROMPTS).join("|")}`,
  ...TRUNCATION,
};

/** See `Engine.embeddings`. Throws RequestError, DeviceError, or the signal's reason. */
export async function embed(
  model: EncoderModel,
  params: EmbeddingCreateParams,
  options: RequestOptions,
): Promise<CreateEmbeddingResponse<string | number[]>> {
  const { embedding: spec } = model;
  const {
    input,
    encoding_format: format,
    dimensions,
    prompt_name: name,
    input_type: type,
    ...rest
  } = readParams(params, PARAMS);
  if (spec === null)
    throw new RequestError("This model scores texts and makes no embeddings; load an embedding model's bundle");
  if (input === undefined) throw new RequestError("input is missing; pass a text or token ids", { param: "input" });
  requireDimensions(spec, dimensions);
  if (type !== undefined && name !== undefined)
    throw new RequestError("prompt_name and input_type both select a prompt; give one of them", {
      param: "input_type",
    });
  const prefix = type === undefined ? promptText(spec, name) : searchPrompt(spec, PROMPTS[type]);
  const signal = anySignal(options.signal, rest.signal);
  const texts = await TextReader.of(model, rest, signal).texts(input, "input", prefix);
  const vectors = await model.engine.encode(texts, signal);
  const data = vectors.map((full, index) => {
    const vector = full.subarray(0, dimensions);
    const scaled = spec.normalize ? unit(vector) : vector;
    return { object: "embedding" as const, index, embedding: format === "base64" ? base64(scaled) : [...scaled] };
  });
  return { object: "list", data, model: model.name, usage: usageOf(texts) };
}

/** The vector scaled to length 1; a zero vector stays zero. */
export function unit(vector: Float32Array): Float32Array {
  const length = Math.max(Math.hypot(...vector), 1e-12);
  return vector.map((value) => value / length);
}

/** The text of the first of these prompts that the model has, or else of its default prompt. */
export function searchPrompt(spec: EmbeddingSpec, names: readonly string[]): string {
  return promptText(
    spec,
    names.find((name) => spec.prompts.some((prompt) => prompt.name === name)),
  );
}

/** Throws RequestError for a name that the model does not have. */
function promptText({ prompts, default_prompt: usual }: EmbeddingSpec, name: string | undefined): string {
  const wanted = name ?? usual;
  const prompt = prompts.find((each) => each.name === wanted);
  if (prompt === undefined && name !== undefined) {
    const known = prompts.map((each) => each.name).join(", ") || "none";
    throw new RequestError(`this model has no prompt '${name.slice(0, 100)}'; it has ${known}`, {
      param: "prompt_name",
    });
  }
  return prompt?.text ?? "";
}

/**
 * Throws RequestError for a length that the model was not trained for (Matryoshka representation learning, Kusupati et
 * al. 2022).
 */
function requireDimensions({ size, dimensions: known }: EmbeddingSpec, dimensions: number | undefined): void {
  if (dimensions === undefined || dimensions === size || known.includes(dimensions)) return;
  const all = [...new Set([...known, size])].sort((a, b) => a - b).join(", ");
  throw new RequestError(`dimensions is ${dimensions}; this model's vectors can have ${all}; request one of these`, {
    param: "dimensions",
  });
}

function base64(vector: Float32Array): string {
  const bytes = new DataView(new ArrayBuffer(vector.length * 4));
  vector.forEach((value, index) => {
    bytes.setFloat32(index * 4, value, true);
  });
  return btoa(Array.from(new Uint8Array(bytes.buffer), (byte) => String.fromCharCode(byte)).join(""));
}

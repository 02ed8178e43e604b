// embeddings.create: computes the vectors of texts or token ids, in OpenAI's form.

import { RequestError } from "../errors.js";
import type { Model } from "./model.js";
import { EMBEDDING_PARAMS, readParams } from "./params.js";
import { textsOf } from "./requests.js";
import { anySignal } from "./stream.js";
import type { CreateEmbeddingResponse, EmbeddingCreateParams, RequestOptions } from "./types.js";

export class Embeddings {
  constructor(private readonly model: Model) {}

  /**
   * The vector of each input, in their order. Throws RequestError (also if the model generates text), DeviceError, or
   * the signal's reason.
   */
  create(
    params: EmbeddingCreateParams & { readonly encoding_format: "base64" },
    options?: RequestOptions,
  ): Promise<CreateEmbeddingResponse<string>>;
  create(params: EmbeddingCreateParams, options?: RequestOptions): Promise<CreateEmbeddingResponse>;
  async create(
    params: EmbeddingCreateParams,
    options: RequestOptions = {},
  ): Promise<CreateEmbeddingResponse<string | number[]>> {
    const { name, text, embeddings } = this.model;
    const {
      input,
      encoding_format: format,
      dimensions = embeddings?.size ?? 0,
      signal,
    } = readParams(params, EMBEDDING_PARAMS);
    if (embeddings === undefined)
      throw new RequestError("This model generates text and makes no embeddings; load an embedding model's bundle");
    if (input === undefined) throw new RequestError("input is missing; pass a text or token ids", { param: "input" });
    if (dimensions > embeddings.size) {
      throw new RequestError(
        `dimensions is ${dimensions}, this model's vectors have ${embeddings.size}; request at most ${embeddings.size}`,
        { param: "dimensions" },
      );
    }
    const ids = textsOf(text, input).map((each) => each.ids);
    const vectors = await embeddings.source.embed(ids, anySignal(options.signal, signal));
    const data = vectors.map((full, index) => {
      const vector = full.subarray(0, dimensions);
      const scaled = embeddings.normalize ? normalized(vector) : vector;
      return { object: "embedding" as const, index, embedding: format === "base64" ? base64(scaled) : [...scaled] };
    });
    const tokens = ids.reduce((sum, { length }) => sum + length, 0);
    return { object: "list", data, model: name, usage: { prompt_tokens: tokens, total_tokens: tokens } };
  }
}

/** Scales the vector to length 1; a zero vector stays zero. */
function normalized(vector: Float32Array): Float32Array {
  const length = Math.max(Math.hypot(...vector), 1e-12);
  return vector.map((value) => value / length);
}

function base64(vector: Float32Array): string {
  const bytes = new DataView(new ArrayBuffer(vector.length * 4));
  vector.forEach((value, index) => {
    bytes.setFloat32(index * 4, value, true);
  });
  return btoa(Array.from(new Uint8Array(bytes.buffer), (byte) => String.fromCharCode(byte)).join(""));
}

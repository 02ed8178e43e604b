// The model that computes the vectors of an index.

import type { VectorClient } from "../api/vector_client.js";
import { RequestError } from "../errors.js";
import { modelIdentity } from "../runtime/model_identity.js";
import { sha256 } from "../runtime/read_file.js";

/** A question and a passage may need different prefixes, which the model's card names. */
export type TextKind = "query" | "passage";

export interface Embedder {
  /** Identifies the model: indexes of other models cannot be used with it. */
  readonly model: string;
  readonly dimensions: number;
  /** A vector for each text. Throws RequestError for a text that is too long, DeviceError, or the signal's reason. */
  embed(texts: readonly string[], kind: TextKind, signal?: AbortSignal): Promise<readonly Float32Array[]>;
}

export interface EmbedderOptions {
  /** What precedes each question and each passage, such as "query: " and "passage: " for E5. */
  readonly queryPrefix?: string | undefined;
  readonly passagePrefix?: string | undefined;
  /** The first dimensions only, for models that were trained for it (Matryoshka). */
  readonly dimensions?: number | undefined;
}

/**
 * The embedder of an engine that has loaded the embedding model in the folder ``bundle``, on this page or in a worker,
 * or of an encoder that chooseEncoder returned for it.
 * The model is identified by the SHA-256 of its weights and its tokenizer, which the bundle's manifest lists, and by
 * the options. Throws BundleError, RequestError, and what the engine throws.
 */
export async function engineEmbedder(
  engine: VectorClient<{ readonly input: string[]; readonly dimensions?: number }>,
  bundle: string | URL,
  options: EmbedderOptions = {},
): Promise<Embedder> {
  const { queryPrefix = "", passagePrefix = "", dimensions } = options;
  const embed: Embedder["embed"] = async (texts, kind, signal) => {
    const prefix = kind === "query" ? queryPrefix : passagePrefix;
    const { data } = await engine.embeddings.create(
      { input: texts.map((text) => prefix + text), ...(dimensions === undefined ? {} : { dimensions }) },
      signal === undefined ? {} : { signal },
    );
    return data.map(({ embedding }) => Float32Array.from(embedding));
  };
  const weights = await modelIdentity(bundle);
  const [probe] = await embed(["nearfar"], "query");
  if (probe === undefined) throw new RequestError("The engine returned no vector; load an embedding model's bundle");
  const identity = JSON.stringify([weights, queryPrefix, passagePrefix, probe.length]);
  return { model: await sha256(new TextEncoder().encode(identity)), dimensions: probe.length, embed };
}

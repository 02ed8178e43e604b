// classify: the labels of texts, or of their tokens.

import type { ClassifyParams } from "../api/encoder_types.js";
import type { Classification, ClassifyResponse, TokenClass } from "../api/replies.js";
import { readParams } from "../api/params.js";
import { identity } from "../api/requests.js";
import { anySignal } from "../api/stream.js";
import type { RequestOptions } from "../api/types.js";
import { RequestError } from "../errors.js";
import type { ClassifierSpec } from "../runtime/manifest.js";
import type { EncoderModel } from "./encoder_model.js";
import { probabilities } from "./probabilities.js";
import type { ReadText } from "./text_reader.js";
import { TRUNCATION, TextReader, usageOf } from "./text_reader.js";

/** See `Engine.classify`. Throws RequestError, DeviceError, or the signal's reason. */
export async function classify(
  model: EncoderModel,
  params: ClassifyParams,
  options: RequestOptions,
): Promise<ClassifyResponse> {
  const { classifier } = model;
  const { input, ...rest } = readParams(params, { input: "any", ...TRUNCATION });
  if (classifier === null)
    throw new RequestError("This model makes embeddings and has no classes; load a classifier's bundle");
  if (input === undefined) throw new RequestError("input is missing; pass a text or token ids", { param: "input" });
  const signal = anySignal(options.signal, rest.signal);
  const texts = await TextReader.of(model, rest, signal).texts(input, "input");
  const rows = await model.engine.encode(
    texts.map(({ ids }) => ({ ids })),
    signal,
  );
  const data = texts.map((text, index): Classification => {
    const scores = rows[index] ?? new Float32Array();
    const num_classes = classifier.labels.length;
    return classifier.per_token
      ? { index, num_classes, tokens: tokenClasses(text, scores, classifier) }
      : { index, num_classes, ...labelled(scores, classifier) };
  });
  return { ...identity("classify", model.name), object: "list", data, usage: usageOf(texts) };
}

function labelled(scores: Float32Array, classifier: ClassifierSpec): { label: string; probs: number[] } {
  const probs = [...probabilities(scores, classifier)];
  return { label: classifier.labels[probs.indexOf(Math.max(...probs))] ?? "", probs };
}

/** ``scores``: those of each token's labels, (T, L). */
function tokenClasses({ ids, spans }: ReadText, scores: Float32Array, classifier: ClassifierSpec): TokenClass[] {
  const count = classifier.labels.length;
  return ids.map((id, token) => {
    const span = spans?.[token] ?? null;
    return {
      token_id: id,
      ...(span === null || span[0] === span[1] ? {} : { start: span[0], end: span[1] }),
      ...labelled(scores.subarray(token * count, (token + 1) * count), classifier),
    };
  });
}

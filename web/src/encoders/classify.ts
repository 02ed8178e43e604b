// classify: the labels of texts, or of their tokens.

import type { ClassifyParams } from "../api/encoder_types.js";
import type { Classification, ClassifyResponse, SpanClass, TokenClass } from "../api/replies.js";
import { readParams } from "../api/params.js";
import { identity } from "../api/requests.js";
import { anySignal } from "../api/stream.js";
import type { RequestOptions } from "../api/types.js";
import { RequestError } from "../errors.js";
import type { ClassifierSpec } from "../runtime/manifest.js";
import type { LabelSpan } from "../shared/label_spans.js";
import { labelSpans } from "../shared/label_spans.js";
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
  const given = typeof input === "string" ? [input] : (input as readonly unknown[]);
  const data = texts.map((text, index): Classification => {
    const scores = rows[index] ?? new Float32Array();
    const num_classes = classifier.labels.length;
    return classifier.per_token
      ? { index, num_classes, ...tokenClasses(given[index], text, scores, classifier) }
      : { index, num_classes, ...labelled(scores, classifier) };
  });
  return { ...identity("classify", model.name), object: "list", data, usage: usageOf(texts) };
}

function labelled(scores: Float32Array, classifier: ClassifierSpec): { label: string; probs: number[] } {
  const probs = [...probabilities(scores, classifier)];
  return { label: classifier.labels[probs.indexOf(Math.max(...probs))] ?? "", probs };
}

/** ``scores``: those of each token's labels, (T, L). ``given`` is the text, or not a string if the input is token ids. */
function tokenClasses(
  given: unknown,
  { ids, spans: characters }: ReadText,
  scores: Float32Array,
  { labels, transitions, activation }: ClassifierSpec,
): Required<Pick<Classification, "tokens">> & Pick<Classification, "spans"> {
  const count = labels.length;
  const found = transitions === null ? null : labelSpans(labels, transitions, scores);
  const tokens = ids.map((id, token): TokenClass => {
    const span = characters?.[token] ?? null;
    const own = scores.subarray(token * count, (token + 1) * count);
    const probs = [...probabilities(own, { activation })];
    const best = found?.best[token] ?? probs.indexOf(Math.max(...probs));
    return {
      token_id: id,
      ...(span === null || span[0] === span[1] ? {} : { start: span[0], end: span[1] }),
      label: labels[best] ?? "",
      probs,
    };
  });
  if (found === null || typeof given !== "string") return { tokens };
  const score = (token: number): number => tokens[token]?.probs[found.best[token] ?? 0] ?? 0;
  return { tokens, spans: found.spans.flatMap((span) => spanClass(given, span, tokens, score)) };
}

/** Nothing for a span without characters. ``score``: of a token, the probability of its label. */
function spanClass(
  text: string,
  { label, first, last }: LabelSpan,
  tokens: readonly TokenClass[],
  score: (token: number) => number,
): SpanClass[] {
  const parts = tokens.slice(first, last + 1);
  const start = parts.find((token) => token.start !== undefined)?.start ?? 0;
  const end = parts.findLast((token) => token.end !== undefined)?.end ?? 0;
  const inner = text.slice(start, end);
  const length = inner.trim().length;
  if (length === 0) return [];
  const begin = end - inner.trimStart().length;
  const sum = parts.reduce((total, _, index) => total + score(first + index), 0);
  return [{ label, start: begin, end: begin + length, score: sum / parts.length }];
}

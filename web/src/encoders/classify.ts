// classify: the labels of texts, or of their tokens, or which of a request's labels texts have.

import type { ClassifyParams } from "../api/encoder_types.js";
import type { Classification, ClassifyResponse, SpanClass, TokenClass } from "../api/replies.js";
import type { Checks } from "../api/params.js";
import { readParams } from "../api/params.js";
import { identity } from "../api/requests.js";
import { anySignal } from "../api/stream.js";
import type { RequestOptions } from "../api/types.js";
import { RequestError } from "../errors.js";
import type { ClassifierSpec } from "../runtime/manifest.js";
import type { LabelSpan } from "../shared/label_spans.js";
import { kindOfLabel, labelSpans } from "../shared/label_spans.js";
import { zeroShotHypotheses, zeroShotProbabilities } from "../shared/zero_shot.js";
import type { EncoderModel } from "./encoder_model.js";
import { probabilities } from "./probabilities.js";
import type { ReadText } from "./text_reader.js";
import { TRUNCATION, TextReader, requireFew, requireText, usageOf } from "./text_reader.js";

const CLASSIFY: Checks = {
  input: "any",
  labels: "string[]",
  hypothesis_template: "string",
  multi_label: "boolean",
  ...TRUNCATION,
};

// The server has the same; `trim` and Python's `strip` have not.
const INNER = /\P{White_Space}(?:.*\P{White_Space})?/su;

type ZeroShotParams = Omit<ClassifyParams, "input" | "labels" | "signal"> & {
  readonly labels: readonly string[];
  readonly signal: AbortSignal;
};

/** See `Engine.classify`. Throws RequestError, DeviceError, or the signal's reason. */
export async function classify(
  model: EncoderModel,
  params: ClassifyParams,
  options: RequestOptions,
): Promise<ClassifyResponse> {
  const { classifier } = model;
  const { input, labels, hypothesis_template, multi_label, ...rest } = readParams(params, CLASSIFY);
  if (classifier === null)
    throw new RequestError("This model makes embeddings and has no classes; load a classifier's bundle");
  if (classifier.decision !== null)
    throw new RequestError("This model answers typed questions and has no classes; use decide", { param: "model" });
  if (input === undefined) throw new RequestError("input is missing; pass a text or token ids", { param: "input" });
  const signal = anySignal(options.signal, rest.signal);
  if (labels != null)
    return zeroShot(model, classifier, input, { labels, hypothesis_template, multi_label, ...rest, signal });
  const lone = hypothesis_template != null ? "hypothesis_template" : multi_label != null ? "multi_label" : null;
  if (lone !== null) throw new RequestError(`${lone} needs labels; give them, or remove it`, { param: lone });
  const texts = await TextReader.of(model, rest, signal).texts(input, "input");
  const rows = await model.engine.encode(
    texts.map(({ ids }) => ({ ids })),
    signal,
  );
  const given = typeof input === "string" ? [input] : (input as readonly unknown[]);
  const name = (index: number): string => (texts.length === 1 ? "input" : `input[${index}]`);
  const data = texts.map((text, index): Classification => {
    const scores = rows[index] ?? new Float32Array();
    const num_classes = classifier.labels.length;
    return classifier.per_token
      ? { index, num_classes, ...tokenClasses(given[index], name(index), text, scores, classifier) }
      : { index, num_classes, ...labelled(scores, classifier) };
  });
  return { ...identity("classify", model.name), object: "list", data, usage: usageOf(texts) };
}

/** Which of the ``labels`` each text has. */
async function zeroShot(
  model: EncoderModel,
  classifier: ClassifierSpec,
  input: NonNullable<ClassifyParams["input"]>,
  { labels, hypothesis_template, multi_label, signal, ...rest }: ZeroShotParams,
): Promise<ClassifyResponse> {
  const hypotheses = zeroShotHypotheses(classifier, { labels, hypothesis_template });
  const given: readonly unknown[] = typeof input === "string" ? [input] : input;
  const premises = given.filter((text) => typeof text === "string");
  if (premises.length < given.length || premises.length === 0)
    throw new RequestError("input must be a text or texts if there are labels, not token ids", { param: "input" });
  const name = (index: number): string => (premises.length === 1 ? "input" : `input[${index}]`);
  premises.forEach((text, index) => {
    requireText(text, name(index));
  });
  requireFew(premises.length * labels.length, "labels");
  const pairs = premises.flatMap((text) => hypotheses.texts.map((hypothesis) => [text, hypothesis] as const));
  const reader = TextReader.of(model, rest, signal);
  const nameOf = (index: number): string => name(Math.floor(index / labels.length));
  const texts = await reader.pairs(pairs, nameOf, nameOf, null, classifier, { shortensFirst: true });
  const typed = model.numTokenTypes > 0 ? texts : texts.map(({ ids }) => ({ ids }));
  const rows = (await model.engine.encode(typed, signal)).map((row) => [...row]);
  const data = premises.map((_, index): Classification => {
    const own = rows.slice(index * labels.length, (index + 1) * labels.length);
    const probs = zeroShotProbabilities(hypotheses, own, multi_label ?? false);
    return { index, num_classes: labels.length, ...likeliest(probs, labels) };
  });
  return { ...identity("classify", model.name), object: "list", data, usage: usageOf(texts) };
}

function labelled(scores: Float32Array, classifier: ClassifierSpec): ReturnType<typeof likeliest> {
  return likeliest([...probabilities(scores, classifier)], classifier.labels);
}

function likeliest(probs: readonly number[], labels: readonly string[]): { label: string; probs: number[] } {
  return { label: labels[probs.indexOf(Math.max(...probs))] ?? "", probs: [...probs] };
}

/**
 * ``scores``: those of each token's labels, (T, L). ``given`` is the text, or not a string if the input is token ids;
 * ``name`` is its parameter. Throws RequestError if spans are asked for and the places of tokens are not known.
 */
function tokenClasses(
  given: unknown,
  name: string,
  { ids, spans: characters }: ReadText,
  scores: Float32Array,
  { labels, transitions, activation }: ClassifierSpec,
): Required<Pick<Classification, "tokens">> & Pick<Classification, "spans"> {
  if (transitions !== null && characters === null && typeof given === "string") {
    throw new RequestError(
      `${name} has characters in another form than its tokens, so that spans have no place in it; normalize it (NFC)`,
      { param: name },
    );
  }
  const count = labels.length;
  const found = labelSpans(labels, transitions, scores);
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
  if (found === null || characters === null || typeof given !== "string") return { tokens };
  const kinds = labels.map(kindOfLabel);
  const score = (token: number): number => {
    const kind = kinds[found.best[token] ?? 0];
    const { probs = [] } = tokens[token] ?? {};
    // Without transitions, a token belongs to a kind by all of its labels.
    return transitions === null && activation === "softmax"
      ? probs.reduce((sum, prob, label) => (kinds[label] === kind ? sum + prob : sum), 0)
      : (probs[found.best[token] ?? 0] ?? 0);
  };
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
  const inner = INNER.exec(text.slice(start, end));
  if (inner === null) return [];
  const begin = start + inner.index;
  const sum = parts.reduce((total, _, index) => total + score(first + index), 0);
  return [{ label, start: begin, end: begin + inner[0].length, score: sum / parts.length }];
}

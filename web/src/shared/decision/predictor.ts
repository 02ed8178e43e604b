// The predictor: the probabilities that each side answers a request correctly, from a text and near's signals.
//
// Each side has two logistic functions: one of the features, and one of its logit, which is Platt's calibration (Platt
// 1999, "Probabilistic outputs for support vector machines"). The weights are part of a policy.
//
// A predictor may also read the vector that an embedding model makes of the text, as its principal components.
//
// The terms of a text count in proportion to the share of them that the predictor knows. So in words that are foreign
// to the fit, the probabilities approach those of the other features: numbers, sentences and lengths, which words do
// not change.

import { RequestError } from "../../errors.js";
import { badPolicy, isObject } from "./schema_check.js";
import { textFeatures, textTerms } from "./features.js";
import type { NearSignals } from "./near_signals.js";
import { NEAR_SIGNALS } from "./near_signals.js";
import type { Predictor, Quality, Weights } from "./policy_schema.js";

/** The probabilities of a correct answer. */
export interface Rights {
  readonly near: number;
  readonly far: number;
}

/** The number that each known term's weight has in the weights of a predictor. */
const termWeights = new WeakMap<Predictor, ReadonlyMap<string, number>>();

/** The names of all features that a predictor may read. */
export function featureNames(): { readonly text: readonly string[]; readonly signals: readonly string[] } {
  return { text: Object.keys(textFeatures("")), signals: NEAR_SIGNALS };
}

/** Whether a predictor reads near's signals. */
export function readsSignals({ predictor }: Quality): boolean {
  return predictor !== null && NEAR_SIGNALS.some((name) => predictor.features.includes(name));
}

/** Throws RequestError for a predictor of an earlier version; ``path`` is the predictor's. */
export function refuseOldPredictor(predictor: unknown, path: string): void {
  if (isObject(predictor) && predictor.version === 1) {
    throw badPolicy(
      path,
      "version 1, which counted hashed words, is no longer read; fit it again with 'nearfar router fit'",
    );
  }
}

/**
 * Throws RequestError for an unknown feature, and for a list of numbers without the length that the others require;
 * ``path`` is the predictor's.
 */
export function checkPredictor(predictor: Predictor, path: string): void {
  const { features, terms, mean, scale, near, far, embedding } = predictor;
  const components = embedding?.components ?? [];
  const weights = features.length + terms.length + components.length;
  const lengths = [
    ["mean", mean, features.length],
    ["scale", scale, features.length],
    ["near.weights", near.weights, weights],
    ["far.weights", far.weights, weights],
    ...components.map((row) => ["a component", row, embedding?.mean.length] as const),
  ] as const;
  for (const [name, values, due] of lengths) {
    if (values.length !== due) throw badPolicy(path, `${name} has ${values.length} numbers, not ${due}`);
  }
  const known = Object.values(featureNames()).flat();
  const unknown = features.findIndex((name) => !known.includes(name));
  if (unknown >= 0) throw badPolicy(`${path}.features[${unknown}]`, `it must be one of ${known.join(", ")}`);
  if (new Set(features).size < features.length) throw badPolicy(path, "a feature appears twice");
  if (new Set(terms).size < terms.length) throw badPolicy(path, "a term appears twice");
}

/**
 * ``text`` is the last user message. A signal or a vector that is null counts as the mean of those that the predictor was
 * fitted on. Throws RequestError for a vector that the model cannot have made.
 */
export function predictRights(
  predictor: Predictor,
  text: string,
  signals: NearSignals | null,
  vector: readonly number[] | null,
): Rights {
  const inputs = predictorInputs(predictor, text, signals, vector);
  const { near, far, calibration } = predictor;
  return { near: calibrated(near, inputs, calibration.near), far: calibrated(far, inputs, calibration.far) };
}

/**
 * The inputs of the weights, as [index of the weight, value]; missing ones are zero. Each term that the text has and
 * the predictor knows has the share of the text's terms that the predictor knows.
 */
function predictorInputs(
  predictor: Predictor,
  text: string,
  signals: NearSignals | null,
  vector: readonly number[] | null,
): readonly (readonly [number, number])[] {
  const values: Readonly<Record<string, number | null>> = { ...textFeatures(text), ...signals };
  const inputs: [number, number][] = [];
  predictor.features.forEach((name, index) => {
    const value = values[name] ?? null;
    if (value !== null) inputs.push([index, (value - (predictor.mean[index] ?? 0)) / (predictor.scale[index] ?? 1)]);
  });
  const terms = textTerms(text);
  const weightOf = weightsOfTerms(predictor);
  const known = terms.flatMap((term) => weightOf.get(term) ?? []);
  const sorted = [...new Set(known)].sort((a, b) => a - b);
  const ofTerms = sorted.map((index) => [index, known.length / terms.length] as const);
  return [...inputs, ...ofTerms, ...vectorInputs(predictor, vector)];
}

function weightsOfTerms(predictor: Predictor): ReadonlyMap<string, number> {
  const kept = termWeights.get(predictor);
  if (kept !== undefined) return kept;
  const made = new Map(predictor.terms.map((term, index) => [term, predictor.features.length + index]));
  termWeights.set(predictor, made);
  return made;
}

function vectorInputs(
  { embedding, features, terms }: Predictor,
  vector: readonly number[] | null,
): readonly (readonly [number, number])[] {
  if (!embedding || !vector) return [];
  const { mean, components, model } = embedding;
  if (vector.length !== mean.length || !vector.every(Number.isFinite)) {
    throw new RequestError(
      `The embedding has ${vector.length} numbers, not the ${mean.length} finite ones of ${model}`,
      {
        code: "bad_situation",
        param: "embedding",
      },
    );
  }
  return components.map((row, number) => [
    features.length + terms.length + number,
    row.reduce((sum, weight, index) => sum + weight * ((vector[index] ?? 0) - (mean[index] ?? 0)), 0),
  ]);
}

function calibrated(
  { weights, bias }: Weights,
  inputs: readonly (readonly [number, number])[],
  calibration: readonly number[],
): number {
  const logit = bias + inputs.reduce((sum, [index, value]) => sum + (weights[index] ?? 0) * value, 0);
  const [a = 1, b = 0] = calibration;
  return sigmoid(a * logit + b);
}

function sigmoid(x: number): number {
  return x >= 0 ? 1 / (1 + Math.exp(-x)) : Math.exp(x) / (1 + Math.exp(x));
}

// The predictor: how likely each side answers a request right. A text and near's signals flow in, two probabilities flow out.
//
// For each side two logistic functions: one of the features, and one of its logit, by which Platt calibrates (Platt 1999, "Probabilistic outputs for
// support vector machines"). The weights are part of a policy.

import { badPolicy } from "./schema_check.js";
import { bucketCounts, textFeatures } from "./features.js";
import type { Predictor, Weights } from "./policy_schema.js";
import type { NearSignals } from "./situation.js";

/** Probabilities of a right answer. */
export interface Rights {
  readonly near: number;
  readonly far: number;
}

/** Throws RequestError where the numbers of a predictor are not as many as its features and buckets ask for; ``place`` is the predictor's. */
export function checkPredictor(predictor: Predictor, place: string): void {
  const { features, buckets, mean, scale, near, far } = predictor;
  const lengths = [
    ["mean", mean, features.length],
    ["scale", scale, features.length],
    ["near.weights", near.weights, features.length + buckets],
    ["far.weights", far.weights, features.length + buckets],
  ] as const;
  for (const [name, values, due] of lengths) {
    if (values.length !== due)
      throw badPolicy(place, `${name} has ${values.length} numbers; features and buckets require ${due}`);
  }
  if (new Set(features).size < features.length) throw badPolicy(place, "a feature appears twice");
}

/** ``text`` is the last user message; a signal that is null counts as the mean of those that it was fitted on. */
export function predictRights(predictor: Predictor, text: string, signals: NearSignals | null): Rights {
  const inputs = predictorInputs(predictor, text, signals);
  const { near, far, calibration } = predictor;
  return { near: calibrated(near, inputs, calibration.near), far: calibrated(far, inputs, calibration.far) };
}

/** What the weights are multiplied with, as [number of the weight, value]; what is left out is zero. */
function predictorInputs(
  predictor: Predictor,
  text: string,
  signals: NearSignals | null,
): readonly (readonly [number, number])[] {
  const values: Readonly<Record<string, number | null>> = { ...textFeatures(text), ...signals };
  const inputs: [number, number][] = [];
  predictor.features.forEach((name, index) => {
    const value = values[name] ?? null;
    if (value !== null) inputs.push([index, (value - (predictor.mean[index] ?? 0)) / (predictor.scale[index] ?? 1)]);
  });
  const counts = [...bucketCounts(text, predictor.buckets)].sort(([a], [b]) => a - b);
  for (const [bucket, count] of counts) inputs.push([predictor.features.length + bucket, Math.log1p(count)]);
  return inputs;
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

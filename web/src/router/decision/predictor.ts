// The predictor: the probabilities that each side answers a request correctly, from a text and near's signals.
//
// Each side has two logistic functions: one of the features, and one of its logit, which is Platt's calibration (Platt
// 1999, "Probabilistic outputs for support vector machines"). The weights are part of a policy.

import { badPolicy } from "./schema_check.js";
import { bucketCounts, textFeatures } from "./features.js";
import type { Predictor, Weights } from "./policy_schema.js";
import type { NearSignals } from "./situation.js";

/** The probabilities of a correct answer. */
export interface Rights {
  readonly near: number;
  readonly far: number;
}

/**
 * Throws RequestError if a list of numbers does not have the length that the features and buckets require; ``path`` is
 * the predictor's.
 */
export function checkPredictor(predictor: Predictor, path: string): void {
  const { features, buckets, mean, scale, near, far } = predictor;
  const lengths = [
    ["mean", mean, features.length],
    ["scale", scale, features.length],
    ["near.weights", near.weights, features.length + buckets],
    ["far.weights", far.weights, features.length + buckets],
  ] as const;
  for (const [name, values, due] of lengths) {
    if (values.length !== due)
      throw badPolicy(path, `${name} has ${values.length} numbers; features and buckets require ${due}`);
  }
  if (new Set(features).size < features.length) throw badPolicy(path, "a feature appears twice");
}

/**
 * ``text`` is the last user message. A signal that is null counts as the mean of those that the predictor was fitted
 * on.
 */
export function predictRights(predictor: Predictor, text: string, signals: NearSignals | null): Rights {
  const inputs = predictorInputs(predictor, text, signals);
  const { near, far, calibration } = predictor;
  return { near: calibrated(near, inputs, calibration.near), far: calibrated(far, inputs, calibration.far) };
}

/** The inputs of the weights, as [index of the weight, value]; missing ones are zero. */
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

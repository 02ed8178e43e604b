// The labels of a text's tokens by the BIOES scheme: a span of several tokens begins (B-), goes on (I-) and ends (E-), a
// single token is a span of its own (S-), and "O" is outside. Tokens get the labels of the best path that consists of
// such spans (Viterbi 1967), so that no span begins without an end.

import { BundleError } from "../errors.js";
import type { TransitionSpec } from "../runtime/manifest.js";

/** The tokens from ``first`` to ``last``, both included. */
export interface LabelSpan {
  readonly label: string;
  readonly first: number;
  readonly last: number;
}

export interface LabelledTokens {
  /** The index of each token's label, (T,). */
  readonly best: readonly number[];
  readonly spans: readonly LabelSpan[];
}

/** The last label of a path, and the sum of the path. */
type End = readonly [label: number, sum: number];

/**
 * The best path for ``scores`` (T, L), row by row, before any activation. Throws BundleError for labels that are not
 * those of the scheme.
 */
export function labelSpans(
  labels: readonly string[],
  transitions: TransitionSpec,
  scores: ArrayLike<number>,
): LabelledTokens {
  requireScheme(labels);
  const count = labels.length;
  const tokens = scores.length / count;
  const parts = labels.map(partOf);
  const outside = [labels.indexOf("O")];
  const closed = labels.flatMap((_, label) => (parts[label] === "E" || parts[label] === "S" ? [label] : []));
  const open = labels.map((label) => ["B", "I"].map((part) => labels.indexOf(part + label.slice(1))));
  // The label before each label of each token.
  const before = new Uint32Array(scores.length);
  let sums = labels.map((_, label) => (parts[label] === "I" || parts[label] === "E" ? -Infinity : 0));
  const from = (ends: readonly number[], added: number): End => {
    let [best = 0] = ends;
    for (const label of ends) if ((sums[label] ?? 0) > (sums[best] ?? 0)) best = label;
    return [best, (sums[best] ?? 0) + added];
  };
  for (let token = 0; token < tokens; token++) {
    const first = token * count;
    const toBackground = better(
      from(outside, transitions.background_stay),
      from(closed, transitions.end_to_background),
    );
    const toStart = better(from(outside, transitions.background_to_start), from(closed, transitions.end_to_start));
    const next = labels.map((_, label) => {
      const part = parts[label];
      let [previous, sum] = part === "O" ? toBackground : toStart;
      if (part === "I" || part === "E")
        [previous, sum] = from(
          open[label] ?? [],
          part === "I" ? transitions.inside_to_continue : transitions.inside_to_end,
        );
      before[first + label] = previous;
      return (token === 0 ? (sums[label] ?? 0) : sum) + (scores[first + label] ?? 0);
    });
    sums = next;
  }

  const best = new Array<number>(tokens);
  let [label] = from([...outside, ...closed], 0);
  for (let token = tokens - 1; token >= 0; token--) {
    best[token] = label;
    label = before[token * count + label] ?? 0;
  }
  return { best, spans: spansOf(best.map((index) => labels[index] ?? "")) };
}

function requireScheme(labels: readonly string[]): void {
  const kinds = new Set(labels.filter((label) => label !== "O").map((label) => label.slice(2)));
  const expected = ["O", ...[...kinds].flatMap((kind) => ["B", "I", "E", "S"].map((part) => `${part}-${kind}`))];
  if (labels.length === expected.length && expected.every((label) => labels.includes(label))) return;
  throw new BundleError("The labels are not those of spans (O, and B-, I-, E- and S- of each kind); compile again", {
    labels: labels.slice(0, 100),
  });
}

function partOf(label: string): string {
  return label.slice(0, 1);
}

function better(first: End, second: End): End {
  return second[1] > first[1] ? second : first;
}

/** The spans of labels that form spans. */
function spansOf(labels: readonly string[]): LabelSpan[] {
  const spans: LabelSpan[] = [];
  let first = 0;
  labels.forEach((label, token) => {
    const part = partOf(label);
    if (part === "B" || part === "S") first = token;
    if (part === "E" || part === "S") spans.push({ label: label.slice(2), first, last: token });
  });
  return spans;
}

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

/** The labels of a kind of span: of its first token, one inside, the last one, and a single one. */
interface Kind {
  readonly begin: number;
  readonly inside: number;
  readonly end: number;
  readonly single: number;
}

/**
 * The best path for ``scores`` (T, L), row by row, before any activation. Throws BundleError for labels that are not
 * those of the scheme.
 */
export function labelSpans(
  labels: readonly string[],
  transitions: TransitionSpec,
  scores: ArrayLike<number>,
): LabelledTokens {
  const kinds = kindsOf(labels);
  const outside = labels.indexOf("O");
  const count = labels.length;
  const tokens = scores.length / count;
  // The label before each label of each token, and the best sum of a path to each label of a token.
  const before = new Uint32Array(scores.length);
  let sums = new Float64Array(count);
  let next = new Float64Array(count);
  for (const { inside, end } of kinds) sums[inside] = sums[end] = -Infinity;
  const sum = (label: number): number => sums[label] ?? -Infinity;
  const ended = (): number => {
    let best = kinds[0]?.end ?? outside;
    for (const { end, single } of kinds) {
      if (sum(end) > sum(best)) best = end;
      if (sum(single) > sum(best)) best = single;
    }
    return best;
  };
  for (let token = 0; token < tokens; token++) {
    const first = token * count;
    const step = (label: number, previous: number, bias: number): void => {
      before[first + label] = previous;
      next[label] = (token === 0 ? sum(label) : sum(previous) + bias) + (scores[first + label] ?? 0);
    };
    const closed = ended();
    const { background_stay: stays, background_to_start: starts } = transitions;
    const { end_to_background: leaves, end_to_start: follows } = transitions;
    const isBackground = sum(closed) + follows <= sum(outside) + starts;
    const [previous, bias] = isBackground ? [outside, starts] : [closed, follows];
    if (sum(closed) + leaves > sum(outside) + stays) step(outside, closed, leaves);
    else step(outside, outside, stays);
    for (const { begin, inside, end, single } of kinds) {
      const open = sum(inside) > sum(begin) ? inside : begin;
      step(begin, previous, bias);
      step(single, previous, bias);
      step(inside, open, transitions.inside_to_continue);
      step(end, open, transitions.inside_to_end);
    }
    [sums, next] = [next, sums];
  }

  const best = new Array<number>(tokens);
  const closed = ended();
  let label = sum(closed) > sum(outside) ? closed : outside;
  for (let token = tokens - 1; token >= 0; token--) {
    best[token] = label;
    label = before[token * count + label] ?? 0;
  }
  return { best, spans: spansOf(best.map((index) => labels[index] ?? "")) };
}

function kindsOf(labels: readonly string[]): readonly Kind[] {
  const names = [...new Set(labels.filter((label) => label !== "O").map((label) => label.slice(2)))];
  const kinds = names.map((name): Kind => {
    const [begin = -1, inside = -1, end = -1, single = -1] = ["B", "I", "E", "S"].map((part) =>
      labels.indexOf(`${part}-${name}`),
    );
    return { begin, inside, end, single };
  });
  const found = new Set([labels.indexOf("O"), ...kinds.flatMap((kind) => Object.values(kind) as number[])]);
  if (found.size === labels.length && !found.has(-1)) return kinds;
  throw new BundleError("The labels are not those of spans (O, and B-, I-, E- and S- of each kind); compile again", {
    labels: labels.slice(0, 100),
  });
}

function partOf(label: string): string {
  return label.slice(0, 1);
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

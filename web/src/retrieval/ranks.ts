// Rankings of slots, and their fusion.

export interface Ranked {
  readonly slot: number;
  readonly score: number;
}

/** The ``count`` highest scores, the highest first; of equal scores, the lower slot first. */
export function best(scores: Iterable<readonly [slot: number, score: number]>, count: number): Ranked[] {
  const ranked: Ranked[] = [];
  for (const [slot, score] of scores) {
    const last = ranked.at(-1);
    if (ranked.length === count && (last === undefined || !isBefore({ slot, score }, last))) continue;
    let [low, high] = [0, ranked.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      const other = ranked[middle];
      if (other !== undefined && isBefore(other, { slot, score })) low = middle + 1;
      else high = middle;
    }
    ranked.splice(low, 0, { slot, score });
    if (ranked.length > count) ranked.pop();
  }
  return ranked;
}

function isBefore(first: Ranked, second: Ranked): boolean {
  return first.score > second.score || (first.score === second.score && first.slot < second.slot);
}

const RANK_OFFSET = 60;

/** Reciprocal rank fusion (Cormack et al. 2009): each ranking adds 1 / (60 + rank) to the score of a slot. */
export function fuse(rankings: readonly (readonly Ranked[])[], count: number): Ranked[] {
  const scores = new Map<number, number>();
  for (const ranking of rankings) {
    for (const [index, { slot }] of ranking.entries())
      scores.set(slot, (scores.get(slot) ?? 0) + 1 / (RANK_OFFSET + index + 1));
  }
  return best(scores, count);
}

// Drafts from the model's own heads: one more layer, which reads the row of the model's last layer for a token, and the
// token after it. The heads run on the model's device, between its steps.
//
// They know row p once token p + 1 is known, so they are a `DraftModel` of the tokens from the second one on, with pages
// of their own; the rows of the model are in the pages of the sequence. A guess after the first one reads the heads' own
// row instead. Once its token is accepted it is computed again from the model's row, as the heads were trained. In the
// place of the embeddings of placeholders they read the features of pictures and sounds, as the model does.
//
// An assistant (Gemma 4) has no keys and values, but reads those of the model: of known tokens it needs the last one
// only, and it computes all guesses at the position of the model's last row.

import { pageTables } from "../engine/pages.js";
import type { Sequence } from "../engine/sequence.js";
import type { ImageRows } from "../engine/step_batch.js";
import type { StepRunner } from "../engine/step_runner.js";
import type { Guess } from "../engine/speculation.js";
import type { OpenBatch } from "../runtime/batch.js";
import type { PageGroup, PagesByGroup } from "../runtime/page_groups.js";
import type { Draft, DraftRunner } from "./draft_model.js";
import { DraftModel } from "./draft_model.js";

export class DraftHeads extends DraftModel {
  protected override readonly firstToken = 1;

  constructor(
    runner: StepRunner,
    override readonly readsImages = true,
    groups = [{ pages: runner.limits.draftPages ?? 0, window: Infinity }],
  ) {
    super(headsOf(runner, groups));
  }

  protected override get readsAgain(): boolean {
    return true;
  }

  /** Whether the model has computed all known tokens but the last one. */
  protected override canRead({ computed, tokens, rewound }: Sequence): boolean {
    return computed >= tokens.length - 1 || rewound !== null;
  }

  protected override addInputs(
    batch: OpenBatch,
    seen: ImageRows,
    sequence: Sequence,
    { slot }: Draft,
    positions: readonly number[],
    isKnown: boolean,
  ): void {
    const { pageSize } = this.runner.limits;
    const pages = [...(pageTables(sequence)[0]?.pages ?? []), ...(sequence.rewound ?? [])];
    batch.kept_rows.push(...positions.map((position) => (isKnown ? rowAt(pages, position, pageSize) : -1 - slot)));
    // A row is at the position of the row that it reads, and its token is the next one.
    seen.add(batch, sequence, positions[0] ?? 0, positions.length, this.firstToken);
  }
}

/** The model keeps the rows of sampled tokens only; a guess from another one may be wrong, like any guess. */
export class DraftAssistant extends DraftHeads {
  constructor(runner: StepRunner) {
    super(runner, true, []);
  }

  protected override draftOf(guess: Guess): Draft | null {
    const draft = super.draftOf(guess);
    if (draft !== null) draft.computed = guess.sequence.tokens.length - this.firstToken - 1;
    return draft;
  }

  protected override pagesOf(sequence: Sequence): PagesByGroup {
    return pageTables(sequence).map((table) => table.pages);
  }

  protected override positionOf({ tokens }: Sequence): number {
    return tokens.length - this.firstToken - 1;
  }
}

/** The slot of the row at a position. */
function rowAt(pages: readonly number[], position: number, pageSize: number): number {
  const page = pages[Math.floor(position / pageSize)];
  if (page === undefined) throw new Error(`the sequence has no page of position ${position}`);
  return page * pageSize + (position % pageSize);
}

/** The heads of a runner as a model of their own, with pages in ``groups``. */
function headsOf(runner: StepRunner, groups: readonly PageGroup[]): DraftRunner {
  const { limits, stepsInFlight } = runner;
  return {
    limits: { ...limits, groups, states: 0 },
    stepsInFlight,
    // The device's choice may change.
    get chunk() {
      return runner.chunk ?? limits.tokens;
    },
    submit: (batch, options) => runner.submit(batch, { ...options, heads: true }),
  };
}

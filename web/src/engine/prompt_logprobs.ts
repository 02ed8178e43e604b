// Log-probabilities of a prompt's last tokens: the rows that must be sampled for them.

/**
 * How many rows of a prompt are still to be sampled: ``pending`` ones are not scheduled, ``scheduled`` ones are not
 * read back.
 *
 * The row at position p gives the log-probability of the token at p + 1, so these rows are the last ones before the row
 * that samples the first token of the answer. They never come from a cache, which holds keys and values but no logits.
 */
export class PromptLogprobRows {
  scheduled = 0;

  constructor(public pending: number) {}

  schedule(rows: number): void {
    this.pending -= rows;
    this.scheduled += rows;
  }

  commit(rows: number): void {
    this.scheduled -= rows;
  }

  /** The scheduled rows will never be read back; schedule them again. */
  restart(): void {
    this.schedule(-this.scheduled);
  }
}

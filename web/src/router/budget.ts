// The ledger: what the far side was asked for today and what it cost. A day is a UTC day.

export interface Spent {
  readonly usd: number;
  readonly requests: number;
}

export interface Ledger {
  today(): Spent;
  /** What is spent today with this. */
  add(more: Partial<Spent>): Spent;
}

/** Where a ledger is kept, as localStorage has it. */
export interface LedgerStore {
  getItem(key: string): string | null;
  setItem(key: string, value: string): void;
}

// The ledger: what the far side was asked for today and what it cost, in a store of texts such as localStorage. A day is a UTC day.
//
// Requests are counted when far is asked, dollars when an answer has ended. A text that cannot be read as a ledger begins anew: it bounds what is
// spent, and must not keep answers from coming.

import type { Budget } from "./policy_schema.js";
import { isObject } from "./schema_check.js";

export interface Spent {
  readonly usd: number;
  readonly requests: number;
}

export interface Ledger {
  today(): Spent;
  /** What is spent today with this. */
  add(more: Partial<Spent>): Spent;
}

/** As localStorage has them. */
export interface LedgerStore {
  getItem(key: string): string | null;
  setItem(key: string, value: string): void;
}

const NOTHING: Spent = { usd: 0, requests: 0 };

/** A Ledger under ``key`` of a store. ``now`` in milliseconds since 1970. */
export class StoredLedger implements Ledger {
  constructor(
    private readonly store: LedgerStore,
    private readonly key: string,
    private readonly now: () => number = Date.now,
  ) {}

  today(): Spent {
    return spentOn(this.store.getItem(this.key), this.day());
  }

  add({ usd = 0, requests = 0 }: Partial<Spent>): Spent {
    const before = this.today();
    const spent = { usd: before.usd + usd, requests: before.requests + requests };
    this.store.setItem(this.key, JSON.stringify({ day: this.day(), ...spent }));
    return spent;
  }

  private day(): string {
    return new Date(this.now()).toISOString().slice(0, 10);
  }
}

/** Whether a day's budget allows nothing more. */
export function isSpent({ far_requests_per_day: requests, far_usd_per_day: usd }: Budget, spent: Spent): boolean {
  return (requests !== null && spent.requests >= requests) || (usd !== null && spent.usd >= usd);
}

/** What a ledger's text has for a day, nothing where it is of another one. */
function spentOn(text: string | null, day: string): Spent {
  const entry = text === null ? null : parsed(text);
  if (!isObject(entry) || entry.day !== day || typeof entry.usd !== "number" || !Number.isInteger(entry.requests)) return NOTHING;
  return { usd: entry.usd, requests: entry.requests as number };
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

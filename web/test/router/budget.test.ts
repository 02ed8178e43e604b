// The ledger of the far side's cost: days, and invalid texts.

import { expect, test, vi } from "vitest";

import type { LedgerStore } from "../../src/router/budget.js";
import { StoredLedger, browserLedger } from "../../src/router/budget.js";

const LATE = Date.UTC(2026, 10, 22, 23, 59, 59);

function memoryStore(text?: string): LedgerStore {
  const items = new Map(text === undefined ? [] : [["ledger", text]]);
  return { getItem: (key) => items.get(key) ?? null, setItem: (key, value) => void items.set(key, value) };
}

test("the ledger adds up, is stored, and starts at zero with each UTC day", () => {
  const store = memoryStore();
  let now = LATE;
  const ledger = new StoredLedger(store, "ledger", () => now);
  expect(ledger.today()).toEqual({ usd: 0, requests: 0 });
  expect(ledger.add({ requests: 1 })).toEqual({ usd: 0, requests: 1 });
  expect(ledger.add({ usd: 0.25 })).toEqual({ usd: 0.25, requests: 1 });
  expect(new StoredLedger(store, "ledger", () => now).today()).toEqual({ usd: 0.25, requests: 1 });
  now += 1000;
  expect(ledger.today()).toEqual({ usd: 0, requests: 0 });
  expect(ledger.add({ requests: 1 })).toEqual({ usd: 0, requests: 1 });
});

test("midnight during an addition does not carry a day over", () => {
  const store = memoryStore();
  new StoredLedger(store, "ledger", () => LATE).add({ usd: 9, requests: 9 });
  let now = LATE;
  new StoredLedger(store, "ledger", () => (now += 1000) - 1000).add({ requests: 1 });
  expect(new StoredLedger(store, "ledger", () => LATE + 1000).today()).toEqual({ usd: 0, requests: 0 });
});

test.each(["Pacific/Kiritimati", "Pacific/Honolulu"])("the day is a UTC day in the time zone %s", (zone) => {
  vi.stubEnv("TZ", zone);
  try {
    // Otherwise this platform cannot change its time zone, and the test shows nothing.
    expect(new Date(LATE).getTimezoneOffset()).not.toBe(0);
    const store = memoryStore();
    new StoredLedger(store, "ledger", () => LATE).add({ requests: 1 });
    expect(store.getItem("ledger")).toContain('"day":"2026-11-22"');
  } finally {
    vi.unstubAllEnvs();
  }
});

test("a ledger that Python wrote is read", () => {
  const ledger = new StoredLedger(
    memoryStore('{"day": "2026-11-22", "usd": 0.5, "requests": 3}'),
    "ledger",
    () => LATE,
  );
  expect(ledger.today()).toEqual({ usd: 0.5, requests: 3 });
});

test.each(["", "{", "[]", "null", '{"day": "2026-11-22", "usd": "1", "requests": 1}'])(
  "an invalid text starts at zero: %s",
  (text) => {
    const ledger = new StoredLedger(memoryStore(text), "ledger", () => LATE);
    expect(ledger.today()).toEqual({ usd: 0, requests: 0 });
    expect(ledger.add({ requests: 2 })).toEqual(ledger.today());
  },
);

test("a ledger goes on counting if the browser refuses its storage", () => {
  const kept = new Map<string, string>();
  let refuses = false;
  const allowed = <T>(value: T): T => {
    if (refuses) throw new Error("quota");
    return value;
  };
  const storage = {
    getItem: (key: string) => allowed(kept.get(key) ?? null),
    setItem: (key: string, value: string) => void allowed(kept.set(key, value)),
  };
  const ledger = browserLedger(
    () => 0,
    () => storage,
  );
  ledger.add({ requests: 1 });
  refuses = true;
  expect(ledger.today().requests).toBe(0);
  ledger.add({ requests: 2 });
  expect(ledger.today().requests).toBe(2);
  expect(
    browserLedger(
      () => 0,
      () => undefined,
    ).add({ usd: 1 }),
  ).toEqual({ usd: 1, requests: 0 });
});

import { expect, test } from "vitest";

import { browserLedger } from "../../src/router/decision/browser_ledger.js";
import { platformDevice } from "../../src/router/decision/device_hints.js";

test("the battery and the network are told where the browser tells them", async () => {
  const battery = { level: 0.4, charging: false };
  expect(await platformDevice({ onLine: false, getBattery: () => Promise.resolve(battery) }).read()).toEqual({ online: false, battery: 0.4, charging: false, thermal: null });
  expect(await platformDevice({ getBattery: () => Promise.reject(new Error("not allowed")) }).read()).toEqual({ online: true, battery: null, charging: null, thermal: null });
});

test("a ledger counts on where the browser refuses its storage", () => {
  const kept = new Map<string, string>();
  let refuses = false;
  const allowed = <T>(value: T): T => {
    if (refuses) throw new Error("quota");
    return value;
  };
  const storage = { getItem: (key: string) => allowed(kept.get(key) ?? null), setItem: (key: string, value: string) => void allowed(kept.set(key, value)) };
  const ledger = browserLedger(() => 0, () => storage); // prettier-ignore
  ledger.add({ requests: 1 });
  refuses = true;
  expect(ledger.today().requests).toBe(0);
  ledger.add({ requests: 2 });
  expect(ledger.today().requests).toBe(2);
  expect(browserLedger(() => 0, () => undefined).add({ usd: 1 })).toEqual({ usd: 1, requests: 0 }); // prettier-ignore
});

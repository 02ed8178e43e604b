// When a side gets requests, no requests, or a trial request.

import { beforeEach, expect, test } from "vitest";

import { Circuit, FAILURES_TO_OPEN, FIRST_WAIT_MS, LONGEST_WAIT_MS } from "../../src/router/answer/circuit.js";

let now: number;
const clock = () => now;
beforeEach(() => (now = 100));

function repeat(times: number, act: () => void): void {
  for (let i = 0; i < times; i++) act();
}

test("a few failures in a row open it", () => {
  const circuit = new Circuit({ clock });
  repeat(FAILURES_TO_OPEN - 1, () => {
    circuit.failed();
  });
  expect(circuit.admits).toBe(true);
  circuit.succeeded();
  repeat(FAILURES_TO_OPEN - 1, () => {
    circuit.failed();
  });
  expect(circuit.admits).toBe(true);
  circuit.failed();
  expect(circuit.admits).toBe(false);
  expect(circuit.msUntilTrial).toBe(FIRST_WAIT_MS);
});

test("a policy sets the number of failures that open it, and the time", () => {
  const circuit = new Circuit({ clock, failures: 1, firstWaitMs: 60_000, longestWaitMs: 1_000 });
  circuit.failed();
  expect(circuit.msUntilTrial).toBe(60_000);
  now += 60_000;
  circuit.begin();
  circuit.failed();
  expect(circuit.msUntilTrial).toBe(60_000);
});

test("a missing server opens it at once", () => {
  const circuit = new Circuit({ clock });
  circuit.failed({ certain: true });
  expect(circuit.state).toBe("open");
});

test("half-open admits one request", () => {
  const circuit = new Circuit({ clock });
  circuit.failed({ certain: true });
  now += FIRST_WAIT_MS;
  expect(circuit.state).toBe("half-open");
  expect(circuit.admits).toBe(true);
  circuit.begin();
  expect(circuit.admits).toBe(false);
  circuit.ended();
  expect(circuit.admits).toBe(true);
  circuit.begin();
  circuit.succeeded();
  expect(circuit.state).toBe("closed");
});

test("a trial that fails doubles the wait up to a limit", () => {
  const circuit = new Circuit({ clock });
  circuit.failed({ certain: true });
  const waits: number[] = [];
  repeat(8, () => {
    waits.push(circuit.msUntilTrial);
    now += circuit.msUntilTrial;
    circuit.begin();
    circuit.failed();
  });
  expect(waits.slice(0, 3)).toEqual([FIRST_WAIT_MS, 2 * FIRST_WAIT_MS, 4 * FIRST_WAIT_MS]);
  expect(waits.at(-1)).toBe(LONGEST_WAIT_MS);
  now += LONGEST_WAIT_MS;
  circuit.succeeded();
  circuit.failed({ certain: true });
  expect(circuit.msUntilTrial).toBe(FIRST_WAIT_MS);
});

test("requests that fail late do not prolong the wait", () => {
  const circuit = new Circuit({ clock });
  circuit.failed({ certain: true });
  now += FIRST_WAIT_MS / 2;
  repeat(10, () => {
    circuit.failed({ certain: true });
  });
  expect(circuit.msUntilTrial).toBe(FIRST_WAIT_MS / 2);
});

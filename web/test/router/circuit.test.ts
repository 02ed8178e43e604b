// When a side gets requests, no requests, or a trial request.

import { beforeEach, expect, test } from "vitest";

import { Circuit } from "../../src/router/answer/side_record.js";

const FAILURES = 3;
const WAIT_MS = 1_000;

let now: number;
let circuit: Circuit;
beforeEach(() => {
  now = 100;
  circuit = new Circuit(FAILURES, WAIT_MS, () => now);
});

function fail(times: number): void {
  for (let i = 0; i < times; i++) circuit.failed();
}

test("failures in a row open it for a while", () => {
  fail(FAILURES - 1);
  expect(circuit.admits).toBe(true);
  circuit.succeeded();
  fail(FAILURES - 1);
  expect(circuit.admits).toBe(true);
  circuit.failed();
  expect(circuit.admits).toBe(false);
  now += WAIT_MS - 1;
  expect(circuit.state).toBe("open");
  now += 1;
  expect(circuit.state).toBe("half-open");
});

test("half-open admits one request", () => {
  fail(FAILURES);
  now += WAIT_MS;
  expect(circuit.admits).toBe(true);
  circuit.begin();
  expect(circuit.admits).toBe(false);
  circuit.ended();
  expect(circuit.admits).toBe(true);
  circuit.begin();
  circuit.succeeded();
  expect(circuit.state).toBe("closed");
});

test("a trial that fails opens it again", () => {
  fail(FAILURES);
  now += WAIT_MS;
  circuit.begin();
  circuit.failed();
  expect(circuit.state).toBe("open");
  now += WAIT_MS;
  expect(circuit.admits).toBe(true);
});

test("requests that fail late do not prolong the wait", () => {
  fail(FAILURES);
  now += WAIT_MS / 2;
  fail(10);
  now += WAIT_MS / 2;
  expect(circuit.state).toBe("half-open");
});

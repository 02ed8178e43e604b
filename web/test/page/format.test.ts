import { expect, test } from "vitest";

import { runsOnCpu } from "../../src/runtime/cpu_adapter.js";
import { formatBytes } from "../../src/format_bytes.js";
import { formatMs, formatParameters, formatSpeed, plural } from "../../page/format.js";

test("numbers are formatted for readers", () => {
  expect([0, 512, 4096, 278_100_000, 1_240_000_000].map(formatBytes)).toEqual([
    "0 B",
    "512 B",
    "4.1 kB",
    "278.1 MB",
    "1.24 GB",
  ]);
  expect([8.25, 9.96, 179, 999.6, 1415, 73_000].map(formatMs)).toEqual([
    "8.3 ms",
    "10 ms",
    "179 ms",
    "1.00 s",
    "1.42 s",
    "73.0 s",
  ]);
  expect([509, 870_400, 494_000_000, 1_235_814_400].map(formatParameters)).toEqual([
    "509",
    "0.87 million",
    "494 million",
    "1.2 billion",
  ]);
  expect([0.25, 47.44, 1234.6].map(formatSpeed)).toEqual(["0.25", "47.4", "1,235"]);
  expect([plural(1, "token"), plural(2000, "token")]).toEqual(["1 token", "2,000 tokens"]);
});

test("drivers that compute on the CPU are recognised by their names", () => {
  expect(
    ["google swiftshader", "llvmpipe (LLVM 15.0.6, 256 bits)", "Microsoft Basic Render Driver"].every(runsOnCpu),
  ).toBe(true);
  expect(["NVIDIA GeForce RTX 4090", "apple metal-3", "Adreno (TM) 750"].some(runsOnCpu)).toBe(false);
});

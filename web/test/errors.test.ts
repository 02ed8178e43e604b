import { expect, test } from "vitest";

import { BundleError, DeviceError, NearfarError, errorFromJson } from "../src/errors.js";

test("an error is of its class, of no other, and of the tree", () => {
  const error = new DeviceError("gone", { reason: "lost" });
  expect([
    error instanceof DeviceError,
    error instanceof BundleError,
    error instanceof NearfarError,
    error instanceof Error,
  ]).toEqual([true, false, true, true]);
  expect(errorFromJson(error.toJSON()) instanceof DeviceError).toBe(true);
  expect(new Error("plain") instanceof NearfarError).toBe(false);
  expect({ code: "device_error", details: {}, toJSON: () => "" } instanceof DeviceError).toBe(false);
});

test("an error of another file's copy of the classes is one of ours", () => {
  const copy = Object.assign(new Error("gone"), { code: "device_error", details: {}, toJSON: () => ({}) });
  expect([copy instanceof DeviceError, copy instanceof BundleError, copy instanceof NearfarError]).toEqual([
    true,
    false,
    true,
  ]);
});

test("a class that is derived from one of them has its own errors only", () => {
  class Mine extends DeviceError {}
  expect([
    new DeviceError("") instanceof Mine,
    new Mine("") instanceof Mine,
    new Mine("") instanceof DeviceError,
  ]).toEqual([false, true, true]);
});

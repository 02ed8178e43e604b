import { expect, test } from "vitest";

import { BundleError, DeviceError, NearfarError, errorFromJson } from "../src/errors.js";

test("an error is an instance of its class, of no other class, and of NearfarError", () => {
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

test("an error from another file's copy of the classes is an instance of ours", () => {
  const copy = Object.assign(new Error("gone"), { code: "device_error", details: {}, toJSON: () => ({}) });
  expect([copy instanceof DeviceError, copy instanceof BundleError, copy instanceof NearfarError]).toEqual([
    true,
    false,
    true,
  ]);
});

test("only its own errors are instances of a derived class", () => {
  class Mine extends DeviceError {}
  expect([
    new DeviceError("") instanceof Mine,
    new Mine("") instanceof Mine,
    new Mine("") instanceof DeviceError,
  ]).toEqual([false, true, true]);
});

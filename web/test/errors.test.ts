import { build } from "esbuild";
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

test("minified classes and their errors have the names of the source", async () => {
  const { outputFiles } = await build({
    entryPoints: ["src/errors.ts"],
    bundle: true,
    minify: true,
    write: false,
    format: "esm",
    target: "es2022",
  });
  const code = Buffer.from(outputFiles[0]?.contents ?? []).toString("base64");
  const minified = (await import(/* @vite-ignore */ `data:text/javascript;base64,${code}`)) as Record<string, unknown>;
  const classes = Object.entries(minified).filter(
    (entry): entry is [string, typeof BundleError] => typeof entry[1] === "function" && /^[A-Z]/.test(entry[0]),
  );
  expect(classes.length).toBe(7);
  for (const [name, type] of classes) expect([type.name, new type("code").name]).toEqual([name, name]);
});

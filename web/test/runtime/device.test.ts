import { expect, test } from "vitest";

import type { ActivationEntry } from "../../src/runtime/manifest.js";
import { chooseActivation, openDevice } from "../../src/runtime/device.js";
import { dawn } from "../../tools/dawn.js";
import { lettersBundle } from "../letters_bundle.js";

const HALF: ActivationEntry = { dtype: "float16", needs: ["shader-f16"] };
const FULL: ActivationEntry = { dtype: "float32", needs: [] };

test("the first activation dtype whose needs the device has is chosen", () => {
  const { manifest } = lettersBundle({ activations: [HALF, FULL] });
  expect(chooseActivation(manifest, new Set(["shader-f16"]))).toBe("float16");
  expect(chooseActivation(manifest, new Set())).toBe("float32");
  expect(chooseActivation(manifest, new Set(["shader-f16"]), new Set(["float16"]))).toBe("float32");
});

test("a float16 bundle without shader-f16 is a DeviceError that names the feature", () => {
  const { manifest } = lettersBundle({ activations: [HALF] });
  expect(() => chooseActivation(manifest, new Set())).toThrow(
    "lacks the WebGPU feature shader-f16, and the bundle offers float16 activations only",
  );
});

test("a browser without WebGPU is a DeviceError", async () => {
  await expect(openDevice(lettersBundle().manifest, {}, () => 0)).rejects.toThrow("This browser has no WebGPU");
});

test("a browser without an adapter is a DeviceError", async () => {
  const gpu = { requestAdapter: () => Promise.resolve(null) } as unknown as GPU;
  await expect(openDevice(lettersBundle().manifest, { gpu }, () => 0)).rejects.toMatchObject({
    code: "device_error",
    details: { missing: "adapter" },
  });
});

test("only the features and limits that the bundle needs, and the device's clock, are requested", async () => {
  const requests: GPUDeviceDescriptor[] = [];
  const adapter = {
    features: new Set(["shader-f16", "subgroups", "timestamp-query"]),
    limits: { maxBufferSize: 2 ** 31, maxStorageBufferBindingSize: 2 ** 31 },
    info: { description: "", vendor: "acme", architecture: "one", device: "" },
    requestDevice: (descriptor: GPUDeviceDescriptor) => {
      requests.push(descriptor);
      return Promise.resolve({});
    },
  } as unknown as GPUAdapter;
  const { manifest } = lettersBundle({ activations: [HALF, FULL] });
  const opened = await openDevice(manifest, { adapter }, () => 200 * 2 ** 20);
  expect(opened).toMatchObject({ activation: "float16", adapter: "acme one" });
  expect(requests).toEqual([
    {
      label: "nearfar",
      requiredFeatures: ["shader-f16", "timestamp-query"],
      requiredLimits: { maxStorageBufferBindingSize: 200 * 2 ** 20 },
    },
  ]);
});

test("a variant may need a feature of WGSL itself, which is not requested", async () => {
  const needs = ["subgroups", "subgroup_id"];
  const { manifest } = lettersBundle({
    variants: { linear: [{ kernels: ["fast"], activation: null, needs, when: null }] },
  });
  const requests: GPUDeviceDescriptor[] = [];
  const adapter = {
    features: new Set(["subgroups"]),
    limits: {},
    info: { description: "any" },
    requestDevice: (descriptor: GPUDeviceDescriptor) => {
      requests.push(descriptor);
      return Promise.resolve({});
    },
  } as unknown as GPUAdapter;
  const known = { wgslLanguageFeatures: new Set(["subgroup_id"]) } as unknown as GPU;
  const unknown = { wgslLanguageFeatures: new Set() } as unknown as GPU;
  expect((await openDevice(manifest, { adapter, gpu: known }, () => 0)).features).toEqual(new Set(needs));
  expect((await openDevice(manifest, { adapter, gpu: unknown }, () => 0)).features).toEqual(new Set(["subgroups"]));
  expect(requests.map(({ requiredFeatures }) => requiredFeatures)).toEqual([["subgroups"], ["subgroups"]]);
});

test("a variant may be for one vendor's GPUs", async () => {
  const needs = ["vendor-acme"];
  const { manifest } = lettersBundle({
    variants: { linear: [{ kernels: ["fast"], activation: null, needs, when: null }] },
  });
  const requests: GPUDeviceDescriptor[] = [];
  const features = async (vendor: string): Promise<ReadonlySet<string>> => {
    const adapter = {
      features: new Set(),
      limits: {},
      info: { description: "any", vendor },
      requestDevice: (descriptor: GPUDeviceDescriptor) => {
        requests.push(descriptor);
        return Promise.resolve({});
      },
    } as unknown as GPUAdapter;
    return (await openDevice(manifest, { adapter }, () => 0)).features;
  };
  expect(await features("acme")).toEqual(new Set(needs));
  expect(await features("other")).toEqual(new Set());
  expect(await features("")).toEqual(new Set());
  expect(requests.flatMap(({ requiredFeatures }) => requiredFeatures)).toEqual([]);
});

test("an activation dtype may need a feature of WGSL itself", async () => {
  const dots = "packed_4x8_integer_dot_product";
  const { manifest } = lettersBundle({ activations: [{ dtype: "int8", needs: [dots] }, FULL] });
  const requests: GPUDeviceDescriptor[] = [];
  const adapter = {
    features: new Set(),
    limits: {},
    info: { description: "any" },
    requestDevice: (descriptor: GPUDeviceDescriptor) => {
      requests.push(descriptor);
      return Promise.resolve({});
    },
  } as unknown as GPUAdapter;
  const open = (features: string[]): ReturnType<typeof openDevice> =>
    openDevice(manifest, { adapter, gpu: { wgslLanguageFeatures: new Set(features) } as unknown as GPU }, () => 0);
  expect((await open([dots])).activation).toBe("int8");
  expect((await open([])).activation).toBe("float32");
  expect(requests.map(({ requiredFeatures }) => requiredFeatures)).toEqual([[], []]);
});

test("a limit beyond the device's is a DeviceError that names it", async () => {
  const gpu = dawn("backend=null");
  const opening = openDevice(lettersBundle().manifest, { gpu }, () => 2 ** 50);
  await expect(opening).rejects.toMatchObject({
    code: "device_error",
    details: { limit: "maxBufferSize", needed: 2 ** 50 },
  });
});

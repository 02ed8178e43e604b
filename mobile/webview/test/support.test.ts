import { expect, test } from "vitest";

import type { SupportScope } from "../src/support.js";
import { supportProblem } from "../src/support.js";
import { SUPPORTED } from "./fakes.js";

const IPHONE =
  "Mozilla/5.0 (iPhone; CPU iPhone OS 18_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Mobile/15E148";
const IPAD = "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko)";
const PIXEL =
  "Mozilla/5.0 (Linux; Android 11; Pixel 5; wv) AppleWebKit/537.36 (KHTML, like Gecko) Version/4.0 Chrome/119.0.0.0 Mobile Safari/537.36";

test("a web view with an adapter has no problem", async () => {
  expect(await supportProblem(SUPPORTED)).toBeNull();
});

test.each<[string, SupportScope, string, string]>([
  ["an old iPhone", { navigator: { userAgent: IPHONE } }, "navigator.gpu", "it needs iOS 26 or later"],
  ["an old iPad", { navigator: { userAgent: IPAD, maxTouchPoints: 5 } }, "navigator.gpu", "it needs iOS 26 or later"],
  ["an old Android", { navigator: { userAgent: PIXEL } }, "navigator.gpu", "Android System WebView 121"],
  ["a desk", { navigator: { userAgent: IPAD, maxTouchPoints: 0 } }, "navigator.gpu", "a web view with WebGPU"],
  [
    "no adapter",
    { navigator: { userAgent: PIXEL, gpu: { requestAdapter: () => Promise.resolve(null) } } },
    "adapter",
    "hardware acceleration",
  ],
  [
    "no secure context",
    { ...SUPPORTED, isSecureContext: false, location: { protocol: "http:", origin: "http://192.168.0.2" } },
    "secure context",
    "'http://192.168.0.2'",
  ],
  ["a file", { ...SUPPORTED, location: { protocol: "file:", origin: "null" } }, "secure context", "'file:'"],
])("the error for %s states what it needs", async (_, scope, missing, words) => {
  const problem = await supportProblem(scope);
  expect(problem).toMatchObject({ code: "device_error", details: { missing } });
  expect(problem?.message).toContain(words);
});

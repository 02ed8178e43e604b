import { expect, test } from "vitest";

import { memoryLimit, rulesOf } from "../../src/probe/platforms.js";

const IPHONE =
  "Mozilla/5.0 (iPhone; CPU iPhone OS 19_0 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/26.0 Mobile/15E148 Safari/604.1";
const MAC =
  "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/26.0 Safari/605.1.15";
const INSTAGRAM = `${IPHONE.replace(" Safari/604.1", "")} Instagram 380.0.0.28.109 (iPhone15,2; iOS 19_0)`;
const WEBVIEW =
  "Mozilla/5.0 (Linux; Android 15; Pixel 8a; wv) AppleWebKit/537.36 (KHTML, like Gecko) Version/4.0 Chrome/140.0.0.0 Mobile Safari/537.36";
const CHROME = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/150.0.0.0 Safari/537.36";

test.each([
  ["an iPhone", { userAgent: IPHONE, maxTouchPoints: 5 }, ["ios"], 1.1],
  ["an iPad, which calls itself a Mac", { userAgent: MAC, maxTouchPoints: 5 }, ["ipad"], 1.1],
  ["a Mac", { userAgent: MAC, maxTouchPoints: 0 }, [], null],
  ["an app's browser on an iPhone", { userAgent: INSTAGRAM, maxTouchPoints: 5 }, ["ios", "in-app"], 0.75],
  ["an app's browser on Android", { userAgent: WEBVIEW, deviceMemory: 8 }, ["in-app"], 0.75],
  ["a computer", { userAgent: CHROME, deviceMemory: 8 }, [], null],
  ["a device with little memory", { userAgent: CHROME, deviceMemory: 2 }, ["low-memory"], 0.8],
  ["no browser", {}, [], null],
] as const)("%s has the rules that apply to it", (_, platform, names, gib) => {
  const rules = rulesOf(platform);
  expect(rules.map(({ name }) => name)).toEqual(names);
  expect(memoryLimit(rules, platform)?.bytes ?? null).toBe(gib === null ? null : Math.floor(gib * 2 ** 30));
});

// The addresses for which the page requests consent, and its words.

import { expect, test } from "vitest";

import { consentWords, foreignOrigin } from "../../page/consent.js";

const PAGE = "https://chat.example/page/?far=x";

test.each([
  ["./policy.json", null],
  ["/policy.json", null],
  ["https://chat.example:443/policy.json", null],
  ["https://chat.example:444/policy.json", "https://chat.example:444"],
  ["http://chat.example/policy.json", "http://chat.example"],
  ["//evil.example/policy.json", "https://evil.example"],
  ["https://chat.example@evil.example/policy.json", "https://evil.example"],
  ["\\\\evil.example\\policy.json", "https://evil.example"],
  ["data:application/json,{}", "data:"],
  ["https://[", null],
])("%s is of %s", (address, origin) => {
  expect(foreignOrigin(address, PAGE)).toBe(origin);
});

test("the words state what is sent to the server", () => {
  expect(consentWords("far")).toContain("receives your message and the conversation so far");
  expect(consentWords("policy")).toContain("may send every message there");
});

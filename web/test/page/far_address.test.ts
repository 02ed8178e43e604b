import { expect, test } from "vitest";

import { hostOf, urlOf } from "../../page/far_address.js";
import { reasonWords, sidesWords } from "../../page/route_words.js";

test("a server without a scheme is on this machine or is reached over TLS", () => {
  expect(["localhost:8000", "127.0.0.1:8000/v1", " http://10.0.0.2 ", "models.example.org"].map(urlOf)).toEqual([
    "http://localhost:8000",
    "http://127.0.0.1:8000/v1",
    "http://10.0.0.2",
    "https://models.example.org",
  ]);
  expect([hostOf("http://localhost:8000/v1"), hostOf("https://models.example.org")]).toEqual([
    "localhost:8000",
    "models.example.org",
  ]);
});

test("reasons are worded for the side that answers, and those of a later version are unchanged", () => {
  expect(reasonWords({ reason: "context", side: "far" })).toBe("too long for this device");
  expect(reasonWords({ reason: "context", side: "near" })).toBe("too long for the server");
  expect(reasonWords({ reason: "moonlight", side: "near" })).toBe("moonlight");
  expect(reasonWords({ reason: "toString", side: "near" })).toBe("toString");
  expect([sidesWords(["near"]), sidesWords(["far", "near"])]).toEqual(["Near", "Far, then near"]);
});

// How the router reads a request: which parts decide, and which texts are searched for private patterns.

import { expect, test } from "vitest";

import type { HybridParams } from "../../src/router/request.js";
import { readRequest } from "../../src/router/request.js";

function withImage(url: string): HybridParams {
  const image = { type: "image_url", image_url: { url, detail: "low" } };
  return { messages: [{ role: "user", content: [{ type: "text", text: "what is this?" }, image] }] };
}

test("an image needs a side that reads images, and is sent unchanged", () => {
  const { properties, params } = readRequest(withImage("https://here/a.png"));
  expect([properties.media, readRequest({ messages: [{ role: "user", content: "hi" }] }).properties.media]).toEqual([
    [{ kind: "picture", message: 0, part: 1 }],
    [],
  ]);
  expect(params.messages).toEqual(withImage("https://here/a.png").messages);
});

test("the parsed form of an answer is neither sent nor searched", () => {
  const answer = { role: "assistant", content: '{"a":1}', parsed: { a: "secret" } };
  const { params, properties } = readRequest({ messages: [{ role: "user", content: "hi" }, answer] } as HybridParams);
  expect(params.messages[1]).toEqual({ role: "assistant", content: '{"a":1}' });
  expect(JSON.stringify(properties)).not.toContain("secret");
});

test("the URL of an image is searched, but not its bytes", () => {
  const texts = (url: string): readonly string[] => readRequest(withImage(url)).properties.texts.flat();
  const bytes = "1234567890ab+/==";
  expect(texts(`data:image/png;base64,${bytes}`)).toContain("data:image/png;base64,");
  expect(texts(`data:image/png;base64,${bytes}`).join(" ")).not.toContain(bytes);
  for (const text of [
    "https://here/a.png",
    "data:image/png;base64,123-45-6789",
    "data:image/png;base64,my number",
    "data:image/svg+xml,<svg/>",
  ]) {
    expect(texts(text)).toContain(text);
  }
});

test("functions are sent as tools, and their names, schemas and calls are searched", () => {
  const { params, properties } = readRequest({
    messages: [
      { role: "user", content: "hi" },
      { role: "assistant", content: null, function_call: { name: "weather", arguments: '{"a":"secret 2"}' } },
      { role: "function", name: "weather", content: "warm", labels: ["l"] },
    ],
    functions: [{ name: "weather", description: "secret 1" }],
  });
  expect(Object.keys(params)).not.toContain("functions");
  expect(params.tools).toEqual([{ type: "function", function: { name: "weather", description: "secret 1" } }]);
  expect(params.messages.map(({ role }) => role)).toEqual(["user", "assistant", "tool"]);
  expect(properties.messages.at(-1)?.labels).toEqual(["l"]);
  expect(properties.tools).toBe(true);
  for (const text of ["weather", "secret 1", "secret 2"]) expect(properties.texts).toContain(text);
});

test("an image of the page is a picture, in whose pixels nothing is searched", () => {
  const image = { width: 1, height: 1, data: new Uint8Array([7, 8, 9]) };
  const { params, properties } = readRequest({ messages: [{ role: "user", content: [{ type: "image", image }] }] });
  expect(params.messages[0]?.content).toEqual([{ type: "image", image }]);
  expect(properties).toMatchObject({ media: [{ kind: "picture", message: 0, part: 0 }], texts: [] });
});

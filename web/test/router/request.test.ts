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
  expect([properties.vision, readRequest({ messages: [{ role: "user", content: "hi" }] }).properties.vision]).toEqual([
    true,
    false,
  ]);
  expect(params.messages).toEqual(withImage("https://here/a.png").messages);
});

test("the URL of an image is searched, but not its bytes", () => {
  const texts = (url: string): readonly string[] => readRequest(withImage(url)).properties.texts;
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

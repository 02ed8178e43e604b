// Messages of sessions that are saved.

import { expect, test } from "vitest";

import { storedMessages } from "../../src/images/stored_messages.js";

const BYTES = Uint8Array.from([137, 80, 78, 71, 0, 255]);
const DATA = `data:image/png;base64,${btoa(String.fromCharCode(...BYTES))}`;
const at = (url: string) => ({ type: "image_url", image_url: { url } });

test("pictures that a page has are stored as addresses with their bytes, and other parts as they are", async () => {
  const image = new Blob([BYTES], { type: "image/png" });
  const address = URL.createObjectURL(image);
  const text = { type: "text", text: "who?" };
  const cat = at("https://example.org/cat.png");
  const messages = [
    { role: "system" as const, content: "brief" },
    { role: "user" as const, content: [text, { type: "image", image }, at(address), cat, at(DATA)] },
  ];
  const stored = await storedMessages(messages);
  expect(stored).toEqual([messages[0], { role: "user", content: [text, at(DATA), at(DATA), cat, at(DATA)] }]);
  expect(JSON.parse(JSON.stringify(stored))).toEqual(stored);
  URL.revokeObjectURL(address);
  await expect(storedMessages(messages)).rejects.toThrow(/the picture blob:\S+ is not there any more/);
});

test("pixels cannot be stored where nothing writes files of pictures", async () => {
  const pixels = { width: 1, height: 1, data: new Uint8Array(3) };
  const content = [{ type: "image", image: pixels }];
  await expect(storedMessages([{ role: "user", content }])).rejects.toThrow("send them as addresses of data:");
});

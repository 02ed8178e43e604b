import { expect, test } from "vitest";

import { withAttachments } from "../../page/attachments.js";
import { asMarkdown, matches, titleOf } from "../../page/conversations.js";
import { readBundleList } from "../../page/model_picker.js";
import { isContextFull, problemOf } from "../../page/problem_words.js";
import { RequestError } from "../../src/index.js";

const CONVERSATION = {
  id: "1",
  revision: 1,
  title: "Fruit",
  updatedMs: 0,
  model: null,
  system: "be\nbrief",
  locked: false,
  turns: [{ question: "An apple?", attachments: [{ name: "a.txt", text: "x" }], private: true, answer: "Yes." }],
};

test("a search finds all of its words in title and text", () => {
  expect(matches(CONVERSATION, "APPLE fruit yes")).toBe(true);
  expect(matches(CONVERSATION, "apple pear")).toBe(false);
});

test("a conversation is exported as Markdown", () => {
  expect(asMarkdown(CONVERSATION)).toBe(
    "# Fruit\n\n> be\n> brief\n\n## You\n\nAn apple?\n\n(attached: a.txt)\n\n## Model\n\nYes.\n",
  );
});

test("a title is one line of at most 60 characters", () => {
  expect(titleOf("  two\n words ")).toBe("two words");
  expect(titleOf("x".repeat(61))).toBe(`${"x".repeat(59)}…`);
});

test("a file's text cannot close its block", () => {
  expect(withAttachments("why?", [{ name: "a.md", text: "```js\n````\n" }])).toBe(
    "a.md:\n`````\n```js\n````\n\n`````\n\nwhy?",
  );
});

test("pictures and videos of a message come before its text, with that of its other files", () => {
  const picture = { name: "cat.png", text: "", picture: "data:image/png;base64,AA==" };
  const film = { name: "cat.mp4", text: "", video: "data:video/mp4;base64,AA==" };
  expect(withAttachments("who?", [film, { name: "a.md", text: "x" }, picture])).toEqual([
    { type: "video_url", video_url: { url: film.video } },
    { type: "image_url", image_url: { url: picture.picture } },
    { type: "text", text: "a.md:\n```\nx\n```\n\nwho?" },
  ]);
});

test("only well-formed entries of a list of models are offered", () => {
  expect(readBundleList([{ name: "A", bundle: "./a/" }, { name: "B" }, null, 3])).toEqual([
    { name: "A", bundle: "./a/" },
  ]);
  expect(readBundleList({ name: "A", bundle: "./a/" })).toEqual([]);
});

test("a full context is recognised from this device, from a server's code, and from its words", () => {
  const full = [
    new RequestError("too long", { tokens: 300, context: 256 }),
    new RequestError("no", { code: "context_length_exceeded" }),
    new RequestError("This model's maximum context length is 8 tokens."),
  ];
  expect(full.map(isContextFull)).toEqual([true, true, true]);
  expect(isContextFull(new RequestError("seed is -1"))).toBe(false);
  expect(problemOf(full[0]).what).toBe(
    "This message is too long for the model: it has 300 tokens, and the model reads 256 at once.",
  );
});

import { expect, test } from "vitest";

import { answerRoom, fitMessages, withoutOldest, textOf } from "../../page/fit_messages.js";
import type { ChatMessage } from "../../page/model.js";

const message = (role: ChatMessage["role"], content: string): ChatMessage => ({ role, content, private: false });
const CHAT = [
  message("system", "sys"),
  message("user", "one"),
  message("assistant", "1"),
  message("user", "two"),
  message("assistant", "2"),
  message("user", "three"),
];
const contentsOf = (messages: readonly ChatMessage[] | null): string | undefined =>
  messages?.map(({ content }) => textOf(content)).join(" ");
/** Ten tokens per message. */
const count = (messages: readonly ChatMessage[]): Promise<number> => Promise.resolve(10 * messages.length);

test("the oldest questions are dropped with their answers, and the system prompt and the last question stay", () => {
  expect(contentsOf(withoutOldest(CHAT, 0))).toBe("sys one 1 two 2 three");
  expect(contentsOf(withoutOldest(CHAT, 1))).toBe("sys two 2 three");
  expect(contentsOf(withoutOldest(CHAT, 2))).toBe("sys three");
  expect(withoutOldest(CHAT, 3)).toBeNull();
});

test.each([
  [75, 0],
  [60, 0],
  [59, 1],
  [40, 1],
  [39, 2],
  [5, 2],
])("for a context of %d tokens beside the answer's room, %d turns are dropped", async (context, dropped) => {
  const fitted = await fitMessages(CHAT, context + 15, 15, count);
  expect(fitted.dropped).toBe(dropped);
  expect(contentsOf(fitted.messages)).toBe(contentsOf(withoutOldest(CHAT, dropped)));
});

test("the room of an answer is its longest length, at most a quarter of the context", () => {
  expect([answerRoom(4096, null), answerRoom(4096, 100), answerRoom(256, 100)]).toEqual([1024, 100, 64]);
});

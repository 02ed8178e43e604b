import { expect, test } from "vitest";

import { splitThinking } from "../../page/thinking.js";

test.each([
  ["An answer.", { thinking: null, ended: true, answer: "An answer." }],
  ["<think>Hm", { thinking: "Hm", ended: false, answer: "" }],
  ["\n<think>Hm.</think>\n\nTwo.", { thinking: "Hm.", ended: true, answer: "Two." }],
  // The template has already opened the block.
  ["Hm.\n</think>\nTwo.", { thinking: "Hm.", ended: true, answer: "Two." }],
  ["<think>\n\n</think>\n\nTwo.", { thinking: null, ended: true, answer: "Two." }],
  ["<thi", { thinking: null, ended: false, answer: "" }],
  ["<thin air", { thinking: null, ended: true, answer: "<thin air" }],
])("splits %j", (text, thought) => {
  expect(splitThinking(text)).toEqual(thought);
});

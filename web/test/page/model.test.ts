// The page's model on a device: Dawn in Node, on any adapter that Vulkan finds.

import { expect, test } from "vitest";

import type { ChatMessage } from "../../page/model.js";
import { openModel } from "../../page/model.js";
import { dawn } from "../../tools/dawn.js";
import { NO_SPECIAL_TOKENS, lettersBundle, memorySource } from "../letters_bundle.js";
import { templateEntry } from "../text/template_trees.js";

const gpu = dawn();
const hasAdapter = (await gpu.requestAdapter()) !== null;
const QUESTION: ChatMessage = { role: "user", content: "a", private: false };
// After its opening "g" the model writes "dchg" again and again.
const TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}g{% endif %}";

test.runIf(hasAdapter)("a continued answer equals one that was not interrupted, wherever it was", async () => {
  const tokenizer = { file: "tokenizer.json", ...templateEntry(TEMPLATE), ...NO_SPECIAL_TOKENS };
  const model = await openModel(memorySource(lettersBundle({ tokenizer }).files), { gpu });
  const answerTo = async (messages: readonly ChatMessage[], maxTokens: number): Promise<string> => {
    const settings = { temperature: 0, maxTokens, seed: null };
    let text = "";
    for await (const piece of model.answer(messages, settings, new AbortController().signal))
      if (piece.type === "text") text += piece.text;
    return text;
  };
  const whole = await answerTo([QUESTION], 9);
  expect(whole).toBe("dchgdchgd");
  for (let cut = 1; cut < whole.length; cut++) {
    const begun: ChatMessage = { role: "assistant", content: whole.slice(0, cut), private: false };
    expect(await answerTo([QUESTION, begun], 9)).toBe(whole.slice(cut));
  }
  // A context of 256 tokens is full in the middle of this answer, and it goes on.
  const begun: ChatMessage = { role: "assistant", content: "dchg".repeat(60), private: false };
  expect(await answerTo([QUESTION, begun], 300)).toBe("dchg".repeat(15));
  model.close();
});

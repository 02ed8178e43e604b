import { readFileSync } from "node:fs";

import { expect, test } from "vitest";

import { ControlTokens, SENTINEL } from "../../src/text/control_tokens.js";
import { Tokenizer } from "../../src/text/tokenizer.js";
import type { Message } from "../../src/text/chat_template.js";
import type { Tool } from "../../src/text/tools.js";
import { formatOf } from "./tool_formats.js";
import { templateEntry } from "./template_trees.js";
import { NO_TOKENS } from "./tokenizers.js";

interface Case {
  readonly name: string;
  readonly tokenizer: string;
  readonly template?: string;
  readonly ids: readonly number[];
  readonly text?: string;
  readonly split_special_tokens?: boolean;
  readonly messages: readonly Message[];
  readonly tools: readonly Tool[] | null;
}

const vectors = JSON.parse(
  readFileSync(new URL("../../../tests/conformance/control_tokens.json", import.meta.url), "utf8"),
) as {
  readonly template: string;
  readonly tokenizers: Readonly<Record<string, unknown>>;
  readonly cases: readonly Case[];
};

const made = (name: string, chatTemplate = vectors.template): Tokenizer =>
  new Tokenizer(JSON.stringify(vectors.tokenizers[name]), {
    ...NO_TOKENS,
    tools: formatOf("hermes"),
    bos_token: "<s>",
    eos_token: "</s>",
    ...templateEntry(chatTemplate),
  });

test.each(vectors.cases)(
  "$name has the ids that Python gives",
  ({ tokenizer: name, template, ids, text, split_special_tokens: split, messages, tools }) => {
    const tokenizer = made(name, template);
    const actual =
      text === undefined
        ? tokenizer.encodeChat(messages, { tools: tools ?? [] })
        : tokenizer.encode(text, false, split);
    expect(actual).toEqual(ids);
  },
);

test("a text that contains the sentinel is refused only if it would be read as one", () => {
  const tokenizer = made("byte_level");
  expect(tokenizer.decode(tokenizer.encode(SENTINEL))).toBe(SENTINEL);
  expect(() => tokenizer.encode(`${SENTINEL}0\ufdd1<|end|>`)).toThrow("U+FDD0");
  expect(() => tokenizer.encodeChat([{ role: "user", content: SENTINEL }])).toThrow("U+FDD0");
});

test("only text that could become part of a control token is marked", () => {
  const controls = new ControlTokens(["<|end|>", "<|user|>", "<think>"], ["<|end|>", "<|user|>"]);
  const marked = (text: string): string => controls.mark(text).replaceAll(SENTINEL, "!");
  expect(["a < b", "<think>", "user", "", " "].map(marked)).toEqual(["a < b", "<think>", "user", "", " "]);
  expect(marked("a<|end|><|user|>b")).toBe("a<!|end|><!|user|>b");
  expect([" a<|e ", "\n|>b", "<"].map(marked)).toEqual([" a<|e! ", "\n!|>b", "<!"]);
  expect(controls.markInfix("user")).toBe(`${SENTINEL}user`);
});

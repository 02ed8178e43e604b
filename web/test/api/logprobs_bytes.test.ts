// The bytes of an answer's listed tokens join to its content, as tests/server_fallback/executors/test_logprobs_bytes.py
// tests for the server.

import { expect, test } from "vitest";

import { ChatCompletions } from "../../src/api/chat_completions.js";
import type { ChatCompletionCreateParamsBase } from "../../src/api/types.js";
import { ToolCallStream } from "../../src/text/tool_call_stream.js";
import { Tokenizer } from "../../src/text/tokenizer.js";
import { formatOf } from "../text/tool_formats.js";
import { templateEntry } from "../text/template_trees.js";
import { NO_TOKENS, byteLevelTokenizer } from "../text/tokenizers.js";
import { TEMPLATE, FakeSource, modelOf } from "./fake_model.js";

const CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>';
const tools = [{ type: "function", function: { name: "f" } }] as const;
// Half of a character: U+FFFD.
const HALF = [97, 0xf0, 0x9f];

type Params = Partial<ChatCompletionCreateParamsBase>;

test.each<[answer: string | readonly number[], params: Params, content: string | null]>([
  ["aé😀b", {}, "aé😀b"],
  ["aé😀bc", { stop: ["bx", "😀b"] }, "aé"],
  ["aé😀bc", { stop: "b", include_stop_str_in_output: true }, "aé😀b"],
  ["aé<", { stop: "<stop>" }, "aé<"],
  [HALF, {}, "a\ufffd"],
  [`Hé: ${CALL}`, { tools }, "Hé: "],
  [`  ${CALL}`, { tools }, null],
  ["é <tool_", { tools }, "é <tool_"],
  ["é <tool_call>{}é", { tools }, "é <tool_call>{}é"],
])("%j with %j", async (answer, params, content) => {
  const format = formatOf("hermes");
  const model = modelOf(new FakeSource([answer]), {
    text: new Tokenizer(byteLevelTokenizer(), { ...NO_TOKENS, ...templateEntry(TEMPLATE), tools: format }),
    tools: { parser: (some) => new ToolCallStream(format, some), grammar: () => null },
  });
  const { choices } = await new ChatCompletions(model).create({
    messages: [{ role: "user", content: "hi" }],
    logprobs: true,
    ...params,
  });
  expect(choices[0]?.message.content).toBe(content);
  const listed = choices[0]?.logprobs?.content ?? [];
  const bytes = Uint8Array.from(listed.flatMap((token) => token.bytes ?? []));
  expect(new TextDecoder().decode(bytes)).toBe(content ?? "");
  const ids = typeof answer === "string" ? new TextEncoder().encode(answer) : answer;
  if (params.stop === undefined) expect(listed.map(({ token_id: id }) => id)).toEqual([...ids]);
});

import { readFileSync } from "node:fs";

import { expect, test } from "vitest";

import { Grammars } from "../../src/grammar/grammars.js";
import { grammar } from "../../src/grammar/index.js";

const TOKENIZER = readFileSync(`${import.meta.dirname}/../../../compiler/demo/nearfar-demo/tokenizer.json`, "utf8");
const SPEC = { vocab_size: 1030, eos_token_ids: [3] };

test("a given module creates the compiler once, and is called again after a failure", async () => {
  const asked: string[] = [];
  const given: typeof grammar = {
    compiler: (tokenizerJson, spec) => {
      asked.push(tokenizerJson);
      if (asked.length === 1) throw new Error("not yet");
      return grammar.compiler(tokenizerJson, spec);
    },
  };
  const grammars = new Grammars(TOKENIZER, SPEC, given);
  await expect(grammars.constraint({ kind: "json_object" })).rejects.toThrow("not yet");
  for (const maxTokens of [20, 30])
    expect((await grammars.constraint({ kind: "json_object" }, maxTokens)).mask()).toHaveLength(Math.ceil(1030 / 32));
  expect(asked).toEqual([TOKENIZER, TOKENIZER]);
});

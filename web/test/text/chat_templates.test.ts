import { readFileSync } from "node:fs";

import { expect, test } from "vitest";

import type { Message } from "../../src/text/chat_template.js";
import type { Tool } from "../../src/text/tools.js";
import { templateOf } from "./template_trees.js";
import { formatOf } from "./tool_formats.js";

interface Case {
  readonly template: string;
  readonly chat: string;
  readonly tools: boolean;
  readonly variables: string;
  /** Null if the template refuses the chat. */
  readonly text: string | null;
}

interface Vectors {
  readonly special_tokens: Readonly<Record<string, string>>;
  readonly tools: readonly Tool[];
  readonly chats: Readonly<Record<string, readonly Message[]>>;
  readonly variables: Readonly<Record<string, Readonly<Record<string, unknown>>>>;
  readonly cases: readonly Case[];
}

const read = (name: string): string =>
  readFileSync(new URL(`../../../tests/conformance/${name}`, import.meta.url), "utf8");
const VECTORS = JSON.parse(read("chat_templates.json")) as Vectors;

test.each([...new Set(VECTORS.cases.map(({ template }) => template))])(
  "the template of %s renders as in transformers",
  (name) => {
    const source = read(`chat_templates/${name}.jinja`);
    // Rendering only checks that there is a format.
    const template = templateOf(source, VECTORS.special_tokens, formatOf("hermes"));
    for (const { chat, tools, variables, text } of VECTORS.cases.filter((each) => each.template === name)) {
      const render = (): string =>
        template.render(VECTORS.chats[chat] ?? [], {
          tools: tools ? VECTORS.tools : [],
          variables: VECTORS.variables[variables],
        });
      if (text === null) expect(render, `${chat} ${variables}`).toThrow();
      else expect(render(), `${chat}, ${variables}, tools: ${tools}`).toBe(text);
    }
  },
);

test("what an iteration has written before continue or break stays, as in Python's Jinja", () => {
  const source =
    "{% for m in messages %}{{ m.role }}{% if m.content == 'a' %}!{% continue %}{% endif %}{{ m.content }}" +
    "{% if m.content == 'b' %}{% break %}{% endif %},{% else %}none{% endfor %}";
  const render = (...contents: string[]): string =>
    templateOf(source, {}).render(contents.map((content) => ({ role: "user", content })));
  expect([render("c", "a", "b", "c"), render("a"), render()]).toEqual(["userc,user!userb", "user!none", "none"]);
});

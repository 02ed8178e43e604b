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

// What Jinja2 renders; null if it raises an error.
const TRAPS: readonly (readonly [source: string, text: string | null])[] = [
  ["{{ '\\n\\n  x'.lstrip('\\n') }}|{{ '.x.'.strip('.') }}", "  x|x"],
  ["{% set s = '😀é' %}{{ s|length }}{{ s[1:] }}{% for c in '😀é' %}{{ loop.index }}{% endfor %}", "2é12"],
  ["{{ missing.x }}", null],
  ["{{ missing|length }}{{ missing|upper }}", "0"],
  ["{{ 'aba'.count('a') }}{{ 'aba'.find('b') }}{{ 'a b c'.rsplit(' ', 1) }}", "21['a b', 'c']"],
  ["{{ '%s-%05.1f' % ('a', 2.25) }}{{ 'a' * 2 }}{{ 3 is gt 2 }}", "a-002.2aaTrue"],
  ["{% raw %}{{ x }}{% endraw %}{{ {'a': [1, 1.0, none]} }}", "{{ x }}{'a': [1, 1.0, None]}"],
  ["{% set s = 'o' %}{% for x in [1, 2] %}{{ s }}{% set s = x %}{% endfor %}{{ s }}", "ooo"],
  [
    "{% set e = ''.join(messages) %}{{ ('ΑΣ ΣΑΣ ŉǆ ᾳ ﬁ' ~ e).title() }} {{ ('ΑΣ' ~ e).swapcase() }} {{ ('ßſΣςᾳıᎠ' ~ e).casefold() }}",
    "Ας Σας ʼNǆ ᾼ Fi ας sssσσαιıᎠ",
  ],
  [
    "{% set e = ''.join(messages) %}{{ ('١٢' ~ e)|int }} {{ ('１.５' ~ e)|float }} {{ ('①' ~ e).isdigit() }} {{ ('一' ~ e).isnumeric() }}",
    "12 1.5 True True",
  ],
  [
    "{% set n = messages|length %}{{ 10 ** (400 + n) / 10 ** 399 }} {{ '%.0e' % (2.5 + n) }} {{ (25.0 + n)|round(-1) }}",
    "10.0 2e+00 20.0",
  ],
];

test.each(TRAPS)("%s renders as in Jinja2", (source, text) => {
  const render = (): string => templateOf(source).render([]);
  if (text === null) expect(render).toThrow("correct the checkpoint's chat template");
  else expect(render()).toBe(text);
});

test("the arguments of a call keep the numbers and the order of their JSON", () => {
  const args = '{"b": 1.0, "2": 12345678901234567890}';
  const call = { id: "1", type: "function", function: { name: "f", arguments: args } };
  const template = templateOf("{{ messages[0].tool_calls[0].function.arguments | tojson }}");
  expect(template.render([{ role: "assistant", tool_calls: [call] }])).toBe(args);
});

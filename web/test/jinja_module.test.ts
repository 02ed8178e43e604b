import * as whole from "@huggingface/jinja";
import { build } from "esbuild";
import { expect, test } from "vitest";

import { jinjaEsbuild } from "../jinja_module.mjs";

const SOURCES = [
  "{# a comment #}{%- macro bold(text, mark='*') -%}{{ mark ~ text ~ mark }}{%- endmacro -%}{{ bold('a') }}{{ bold('b', mark='_') }}",
  "{% for m in [1, 2.5, -3] if m is number and not m is string %}{{ loop.index }}:{{ m ** 2 // 1 % 5 }}{% if loop.last %}.{% elif m > 2 %},{% else %};{% endif %}{% else %}none{% endfor %}",
  "{% set ns = namespace(n=0) %}{% set ns.n = ns.n + 1 %}{{ {'a': [1, (2, 3)]} | tojson }}{{ 'abc'[::-1] if ns.n == 1 else '' }}{{ 'x,y'.split(',') | join('-') | upper }}",
  "{% filter upper %}a{% endfilter %}{% call(item) missing() %}{{ item }}{% endcall %}",
  "{{ 'a' | nothing }}",
  "{{ 'a' is nothing }}",
  "{{ (1 }}",
  "{% if %}",
  "{{ {'a' 1} }}",
  "{% what %}",
  "{{ a b }}",
];

function answer({ Template }: typeof whole, source: string): string {
  try {
    return new Template(source).render({});
  } catch (error) {
    return `${error instanceof Error ? error.constructor.name : ""}: ${String(error)}`;
  }
}

test("the smaller jinja has the results and the errors of the package", async () => {
  const stdin = { contents: 'export { Template } from "@huggingface/jinja"', resolveDir: import.meta.dirname };
  const { outputFiles } = await build({
    stdin,
    bundle: true,
    format: "esm",
    minify: true,
    write: false,
    plugins: [jinjaEsbuild],
  });
  const [text = ""] = outputFiles.map((file) => file.text);
  // The minifier keeps the name of a variable that is not declared.
  expect(text).not.toContain("TOKEN_TYPES");
  const url = `data:text/javascript;base64,${Buffer.from(text).toString("base64")}`;
  const smaller = (await import(/* @vite-ignore */ url)) as typeof whole;
  for (const source of SOURCES) expect(answer(smaller, source), source).toBe(answer(whole, source));
});

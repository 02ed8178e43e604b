// Regular expressions and ranges of numbers against JavaScript's own, and the other kinds of grammars.

import fc from "fast-check";
import { beforeAll, expect, test, vi } from "vitest";

import { DeviceError, RequestError } from "../../src/errors.js";
import { GrammarCompiler } from "../../src/grammar/index.js";
import { readVocabulary } from "../../src/grammar/vocabulary.js";
import { GrammarWasm } from "../../src/grammar/wasm.js";
import { byteFallbackTokenizer, byteLevelTokenizer } from "../text/tokenizers.js";
import { sourceRules } from "../../src/shared/grammar/rules.js";
import { accepts, expectRulesOrRefusal } from "./accepts.js";
import { VOCABULARY, demoGrammars, pick } from "./pick.js";

const grammars = demoGrammars();
let wasm: GrammarWasm;
beforeAll(async () => {
  wasm = await GrammarWasm.load(VOCABULARY);
});

const takes = (source: Parameters<typeof accepts>[1], texts: readonly string[]): boolean[] =>
  accepts(wasm, source, texts);

const PATTERNS = [
  "a*b|c+",
  "(ab|a)(bc|c)?",
  "[^a-c]x?",
  "\\d{2,3}[.,]?",
  "(a|b)*abb",
  "x{0,2}y{1,}",
  "\\w\\W",
  "(?:a(?<n>b)?)+",
  "a.c",
  "[\\]\\-a]+",
  "\\u0061\\x62\\u{63}",
  "",
  "^a$|b",
  "^(\u00e9|\u4e2d|a)+$",
  "-(1|12|123)\\.5|1\\.5|12\\.55",
  "[\\s\\d]+",
  "(ab){2}|(abab)*c",
  "(a{2}|b+?)c*?",
];

test.each(PATTERNS)("the grammar of /%s/ accepts the texts that the expression matches completely", (pattern) => {
  const alphabet = fc.constantFrom(
    "a",
    "b",
    "c",
    "x",
    "y",
    "1",
    "2",
    "3",
    "5",
    ".",
    ",",
    "-",
    "]",
    " ",
    "\n",
    "\u00e9",
    "\u4e2d",
  );
  const known = [
    "",
    "a",
    "b",
    "ab",
    "abc",
    "abb",
    "cc",
    "12",
    "123.",
    "abab",
    "ababc",
    "-12.5",
    "1.5",
    "12.55",
    "-12.55",
    "a\u4e2db",
    "\u4e2db",
    "xxyyy",
  ];
  const texts = [...known, ...fc.sample(fc.string({ unit: alphabet, maxLength: 6 }), { numRuns: 300, seed: 7 })];
  const whole = new RegExp(`^(?:${pattern})$`, "u");
  expect(takes({ kind: "regex", pattern }, texts)).toEqual(texts.map((text) => whole.test(text)));
  const somewhere = new RegExp(pattern, "u");
  const strings = texts.map((text) => JSON.stringify(text));
  expect(takes({ kind: "json_schema", schema: { type: "string", pattern } }, strings)).toEqual(
    texts.map((text) => somewhere.test(text)),
  );
});

test.each([
  ["(", "is not a regular expression"],
  [")", "is not a regular expression"],
  ["*a", "is not a regular expression"],
  ["a**", "is not a regular expression"],
  ["a{2}{3}", "is not a regular expression"],
  ["a{3,2}", "is not a regular expression"],
  ["[z-a]", "is not a regular expression"],
  ["[a", "is not a regular expression"],
  ["a\\", "is not a regular expression"],
  ["(?i)a", "is not a regular expression"],
  ["(?=a)b", "uses lookaround"],
  ["(?<!a)b", "uses lookaround"],
  ["(a)\\1", "which is not supported here"],
  ["\\bfoo", "which is not supported here"],
  ["\\p{L}", "which is not supported here"],
  ["\\u12", "unfinished"],
  ["[^\\s\\S]", "without a character"],
  ["a(^b)", "anchor"],
  ["a^b", "anchor"],
  ["a{1234567}", "too large"],
  ["(".repeat(300) + ")".repeat(300), "nested too deep"],
])("%s %s", (pattern, message) => {
  expect(() => sourceRules({ kind: "regex", pattern })).toThrow(message);
});

test("any text is a pattern or refused", () => {
  const text = fc.string({
    unit: fc.constantFrom(...Array.from(String.raw`ab01()[]{}*+?|^$\-,.xdwsSuU`)),
    maxLength: 12,
  });
  fc.assert(
    fc.property(text, (pattern) => {
      expectRulesOrRefusal({ kind: "regex", pattern });
    }),
    { numRuns: 500, seed: 3 },
  );
});

test("ranges of numbers accept only the numbers within their bounds", () => {
  const bound = fc.oneof(
    fc.integer({ min: -130, max: 130 }),
    fc.integer({ min: -2500, max: 2500 }).map((value) => value / 100),
  );
  const optional = fc.option(bound, { nil: undefined });
  const bounds = fc.record({
    minimum: optional,
    maximum: optional,
    exclusiveMinimum: optional,
    exclusiveMaximum: optional,
  });
  fc.assert(
    fc.property(
      bounds,
      fc.boolean(),
      fc.array(fc.integer({ min: -140_000, max: 140_000 }), { minLength: 20, maxLength: 20 }),
      (limits, integer, thousandths) => {
        const given = Object.fromEntries(Object.entries(limits).filter(([, value]) => value !== undefined));
        const limit = Object.values(given) as number[];
        const near = limit
          .flatMap((value) => [value + 1, value - 1, value + 0.001, value - 0.001])
          .map((value) => Number(value.toFixed(3)));
        const values = [...limit, ...near, ...thousandths.map((value) => value / 1000), 0, 1, -1];
        const within = (value: number): boolean =>
          (!integer || Number.isInteger(value)) &&
          value >= (limits.minimum ?? -Infinity) &&
          value <= (limits.maximum ?? Infinity) &&
          value > (limits.exclusiveMinimum ?? -Infinity) &&
          value < (limits.exclusiveMaximum ?? Infinity);
        let taken: boolean[];
        try {
          taken = takes(
            { kind: "json_schema", schema: { type: integer ? "integer" : "number", ...given } },
            values.map(String),
          );
        } catch (error) {
          expect((error as RequestError).message).toContain("allows no value at all");
          taken = values.map(() => false);
        }
        // String(-0) is not "-0".
        expect(values.filter((value, index) => taken[index] !== within(value) && !Object.is(value, -0))).toEqual([]);
      },
    ),
    { numRuns: 60, seed: 3 },
  );
});

test.each([
  [{ kind: "regex", pattern: "(yes|no), because [a-z ]{5,}\\." }, /^(yes|no), because [a-z ]{5,}\.$/],
  [{ kind: "regex", pattern: "[\\s\\S]*END" }, /END$/],
  [
    { kind: "ebnf", grammar: 'root ::= "move " [a-h] [1-8] (" to " [a-h] [1-8])? "\\n"' },
    /^move [a-h][1-8]( to [a-h][1-8])?\n$/,
  ],
  [{ kind: "ebnf", grammar: 'root ::= item+ "."\nitem ::= "(" item* ")"' }, /^[()]+\.$/],
] as const)("%j: every answer is valid, also if maxTokens ends it", async (source, expected) => {
  for (const [seed, maxTokens] of [16, 18, 24, 60].entries()) {
    const constraint = await grammars.constraint(source, maxTokens);
    const { text, tokens } = pick(constraint, maxTokens, seed);
    constraint.dispose();
    expect(text).toMatch(expected);
    expect(tokens).toBeLessThanOrEqual(maxTokens);
  }
});

test("wrong grammars are RequestErrors with a location, after which the engine still works", async () => {
  await expect(grammars.constraint({ kind: "ebnf", grammar: "root ::= nothing" })).rejects.toThrow(
    'Rule "nothing" is not defined',
  );
  await expect(grammars.constraint({ kind: "ebnf", grammar: "root ::= nothing" })).rejects.toBeInstanceOf(RequestError);
  await expect(grammars.constraint({ kind: "regex", pattern: "a(b" })).rejects.toThrow("is not a regular expression");
  await expect(grammars.constraint({ kind: "json_object" }, 1)).rejects.toThrow("more than maxTokens, 1; raise it");
  const constraint = await grammars.constraint({ kind: "json_object" }, 30);
  expect(JSON.parse(pick(constraint, 30, 1).text)).toBeTypeOf("object");
  constraint.dispose();
});

test("without maxTokens the grammar alone decides, and a token that it does not allow is refused", async () => {
  const constraint = await grammars.constraint({ kind: "regex", pattern: "ab?" });
  const id = (text: string): number => VOCABULARY.tokens.findIndex((bytes) => new TextDecoder().decode(bytes) === text);
  expect([constraint.complete, constraint.finished]).toEqual([false, false]);
  expect(() => {
    constraint.accept(id("b"));
  }).toThrow("does not continue the grammar");
  constraint.accept(id("a"));
  expect([constraint.complete, constraint.finished]).toEqual([true, false]);
  constraint.accept(id("b"));
  expect([constraint.complete, constraint.finished]).toEqual([true, true]);
  constraint.dispose();
});

test("a grammar is compiled once", async () => {
  const compiler = new GrammarCompiler(VOCABULARY);
  const source = { kind: "json_schema", schema: { type: "array", items: { type: "integer" }, maxItems: 20 } } as const;
  const compile = vi.spyOn(GrammarWasm.prototype, "compile");
  for (let times = 0; times < 20; times++) (await compiler.constraint({ ...source })).dispose();
  expect(compile).toHaveBeenCalledOnce();
  compile.mockRestore();
});

test("the vocabulary of each kind of tokenizer is its tokens' bytes, without special tokens and with room for padding", () => {
  const byteLevel = readVocabulary(byteLevelTokenizer(), { vocab_size: 300, eos_token_ids: [257] });
  expect(byteLevel.tokens.slice(0, 256).every((bytes, byte) => bytes.length === 1 && bytes[0] === byte)).toBe(true);
  expect(byteLevel.tokens.length).toBe(300);
  expect([256, 257, 299].map((id) => byteLevel.tokens[id]?.length)).toEqual([0, 0, 0]);
  const byteFallback = readVocabulary(byteFallbackTokenizer(), { vocab_size: 263, eos_token_ids: [] });
  expect(byteFallback.tokens[0xc3]).toEqual(Uint8Array.of(0xc3));
  expect(byteFallback.tokens[256]).toEqual(Uint8Array.of(0x20));
  expect(byteFallback.tokens[262]).toEqual(new TextEncoder().encode("\u00e9"));
  const words = JSON.stringify({ model: { vocab: { hello: 0 } }, decoder: { type: "WordPiece" } });
  expect(() => readVocabulary(words, { vocab_size: 1, eos_token_ids: [] })).toThrow("decoder is WordPiece");
});

test("if the page forbids WebAssembly, the error names the word that its policy lacks", async () => {
  const { instantiate } = WebAssembly;
  const refusal = new WebAssembly.CompileError(
    "Refused to compile or instantiate WebAssembly module because 'unsafe-eval' is not an allowed source",
  );
  WebAssembly.instantiate = (): Promise<never> => Promise.reject(refusal);
  try {
    await expect(GrammarWasm.load(VOCABULARY)).rejects.toBeInstanceOf(DeviceError);
    await expect(GrammarWasm.load(VOCABULARY)).rejects.toThrow("add 'wasm-unsafe-eval' to its script-src");
  } finally {
    WebAssembly.instantiate = instantiate;
  }
});

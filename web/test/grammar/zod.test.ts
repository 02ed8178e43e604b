// Schemas in the forms of Zod, the AI SDK and LangChain: valid values are accepted, invalid ones are rejected.

import { toJsonSchema } from "@langchain/core/utils/json_schema";
import { Output } from "ai";
import { beforeAll, expect, test } from "vitest";
import { z } from "zod";

import { GrammarWasm } from "../../src/grammar/wasm.js";
import { oneOf } from "../exhaustive.js";
import { accepts } from "./accepts.js";
import { VOCABULARY, demoGrammars, pick } from "./pick.js";

const grammars = demoGrammars();
let wasm: GrammarWasm;
beforeAll(async () => {
  wasm = await GrammarWasm.load(VOCABULARY);
});

const UUID = "01234567-89ab-4def-8123-456789abcdef";
const CASES: Readonly<
  Record<string, readonly [type: z.ZodType, right: readonly unknown[], wrong: readonly unknown[]]>
> = {
  int: [z.int(), [0, -7, Number.MAX_SAFE_INTEGER, Number.MIN_SAFE_INTEGER], [1.5, 2 ** 53, -(2 ** 53), "1"]],
  "int with bounds": [z.int().min(0).max(100), [0, 100], [-1, 101]],
  "positive int": [z.int().positive(), [1, Number.MAX_SAFE_INTEGER], [0, -1]],
  int32: [z.int32(), [2147483647], [2147483648]],
  float32: [z.float32(), [1.5, -3], ["1"]],
  email: [z.email(), ["a.b+c@example.com"], ["a", "a@b", "a b@example.com", 1]],
  "email of HTML": [z.email({ pattern: z.regexes.html5Email }), ["a!b@example.com"], ["a@-b.com"]],
  uuid: [z.uuid(), [UUID, UUID.toUpperCase()], [UUID.slice(1), UUID.replace("-8123", "-7123"), `${UUID}0`]],
  "uuid of version 7": [z.uuidv7(), [UUID.replace("-4", "-7")], [UUID]],
  guid: [z.guid(), [UUID.replace("-8123", "-7123")], [UUID.slice(1)]],
  url: [z.url(), ["https://example.com/a?b=c#d", "http://localhost:8080"], ["example", ""]],
  date: [z.iso.date(), ["2023-02-28", "2024-02-29"], ["2023-02-29", "2023-1-1", "1900-02-29"]],
  time: [z.iso.time(), ["23:59", "23:59:59.5"], ["24:00", "1:00"]],
  datetime: [z.iso.datetime(), ["2024-02-29T12:00:00Z"], ["2024-02-29", "2024-02-29T12:00:00+01:00"]],
  "datetime with an offset": [z.iso.datetime({ offset: true }), ["2024-02-29T12:00:00+01:00"], ["2024-02-29T12:00:00"]],
  "local datetime": [z.iso.datetime({ local: true }), ["2024-02-29T12:00:00"], ["2023-02-29T12:00:00"]],
  duration: [z.iso.duration(), ["P1D", "PT5M", "P2W"], ["P", "1D"]],
  hostname: [z.hostname(), ["a-1.example"], ["-a", "a..b"]],
  ipv4: [z.ipv4(), ["127.0.0.1"], ["256.0.0.1"]],
  ipv6: [z.ipv6(), ["::1", "2001:db8::8:800:200c:417a"], ["1:2", "1::2::3"]],
  nanoid: [z.nanoid(), ["V1StGXR8_Z5jdHi6B-myT"], ["V1StGXR8"]],
  ulid: [z.ulid(), ["01ARZ3NDEKTSV4RRFFQ69G5FAV"], ["81ARZ3NDEKTSV4RRFFQ69G5FAV"]],
  base64: [z.base64(), ["", "YQ==", "YWJj"], ["Y"]],
  e164: [z.e164(), ["+4912345678"], ["4912345678"]],
  mac: [z.mac(), ["00:1A:2B:3C:4D:5E"], ["00:1A:2B"]],
  "text that starts with": [z.string().startsWith("a").max(3), ["a", "abc"], ["b", "abcd"]],
  regex: [z.string().regex(/^[a-c]+\d$/), ["abc1"], ["abc"]],
  record: [z.record(z.string(), z.int()), [{}, { a: 1, "b c": -2 }], [{ a: "1" }, []]],
  "record of an enum": [z.record(z.enum(["a", "b"]), z.int()), [{ a: 1, b: 2 }], [{ a: 1 }, { a: 1, b: 2, c: 3 }]],
  "partial record": [z.partialRecord(z.enum(["a", "b"]), z.int()), [{}, { b: 2 }], [{ c: 3 }]],
  "record of e-mails": [z.record(z.email(), z.boolean()), [{ "a@b.com": true }], [{ a: true }]],
  "record of patterns": [z.record(z.string().regex(/^k\d$/), z.null()), [{ k1: null }], [{ k: null }]],
  "optional and required": [
    z.object({ a: z.int().optional(), b: z.string() }),
    [{ b: "x" }, { a: 1, b: "x" }],
    [{ a: 1 }, { a: null, b: "x" }],
  ],
  nullable: [z.email().nullable(), [null, "a@b.com"], ["a", 1]],
  union: [z.union([z.int(), z.boolean(), z.iso.date()]), [1, true, "2024-01-01"], [1.5, null, "x"]],
  enum: [z.enum(["a", "b"]), ["a", "b"], ["c", 1]],
  literal: [z.literal(["a", 1, null]), ["a", 1, null], ["b", 2]],
  list: [z.array(z.int()).min(1).max(3), [[1], [1, 2, 3]], [[], [1, 2, 3, 4]]],
  tuple: [z.tuple([z.string(), z.int()]), [["a", 1]], [["a"], ["a", 1, 2]]],
  variants: [
    z.discriminatedUnion("kind", [
      z.object({ kind: z.literal("a"), size: z.int() }),
      z.object({ kind: z.literal("b"), name: z.string() }),
    ]),
    [
      { kind: "a", size: 1 },
      { kind: "b", name: "x" },
    ],
    [{ kind: "a", name: "x" }, { kind: "c" }],
  ],
  "nested objects": [
    z.object({
      id: z.uuid(),
      owner: z.object({ email: z.email(), since: z.iso.datetime().optional() }),
      counts: z.record(z.string(), z.int().min(0)),
    }),
    [{ id: UUID, owner: { email: "a@b.com", since: "2024-01-01T00:00:00Z" }, counts: { a: 1 } }],
    [
      { id: UUID, owner: {}, counts: {} },
      { id: UUID, owner: { email: "a@b.com" }, counts: { a: -1 } },
    ],
  ],
};

test.each(Object.entries(CASES))("%s: Zod and the grammar agree on right and wrong values", async (_, field) => {
  const [type, right, wrong] = field;
  for (const value of right) expect(type.safeParse(value).success, JSON.stringify(value)).toBe(true);
  for (const value of wrong) expect(type.safeParse(value).success, JSON.stringify(value)).toBe(false);
  const source = { kind: "json_schema", schema: z.toJSONSchema(type) } as const;
  const values = [...right, ...wrong];
  const texts = values.map((value) => JSON.stringify(value));
  const taken = accepts(wasm, source, texts);
  expect(values.filter((_, index) => taken[index])).toEqual(right);

  const constraint = await grammars.constraint(source, 120);
  const { text } = pick(constraint, 120, 1);
  constraint.dispose();
  expect(type.safeParse(JSON.parse(text)).success, text).toBe(true);
});

// The forms differ around the field, not in it.
test.each(oneOf(4, Object.entries(CASES)))(
  "%s: the schemas of the AI SDK and LangChain become grammars",
  async (_, [type]) => {
    const schema = z.object({ field: type });
    const format = await Output.object({ schema }).responseFormat;
    for (const written of [format?.type === "json" ? format.schema : undefined, toJsonSchema(schema)]) {
      expect(written).toHaveProperty("properties.field");
      expect(accepts(wasm, { kind: "json_schema", schema: written as object }, ["{}"])).toEqual([false]);
    }
  },
);

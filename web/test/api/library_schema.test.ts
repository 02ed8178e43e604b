// Schemas as Zod, the AI SDK and LangChain write them, against the real grammar compiler.

import { readFile } from "node:fs/promises";

import { toJsonSchema } from "@langchain/core/utils/json_schema";
import { Output } from "ai";
import { expect, test } from "vitest";
import { z } from "zod";

import { plainSchema, withPlainSchemas } from "../../src/api/library_schema.js";
import { Grammars } from "../../src/grammar/grammars.js";

const tokenizer = await readFile(
  new URL("../../../compiler/demo/nearfar-demo/tokenizer.json", import.meta.url),
  "utf8",
);
const grammars = new Grammars(tokenizer, { vocab_size: 1030, eos_token_ids: [3] });

const FIELDS = {
  integer: z.int(),
  "integer with bounds": z.int().min(0).max(100),
  optional: z.string().optional(),
  nullable: z.string().nullable(),
  list: z.array(z.int()).min(1).max(3),
  tuple: z.tuple([z.string(), z.int()]),
  choice: z.enum(["a", "b"]),
  union: z.union([z.int(), z.boolean()]),
  variants: z.discriminatedUnion("kind", [
    z.object({ kind: z.literal("a"), size: z.int() }),
    z.object({ kind: z.literal("b"), name: z.string() }),
  ]),
  record: z.record(z.string(), z.int()),
  email: z.email(),
  date: z.iso.date(),
  "date and time": z.iso.datetime(),
  uuid: z.uuid(),
  url: z.url(),
  ipv4: z.ipv4(),
  described: z.string().describe("a name"),
};

test.each(Object.entries(FIELDS))("a Zod schema with a field of kind %s becomes a grammar", async (_, field) => {
  const schema = z.object({ field });
  const format = await Output.object({ schema }).responseFormat;
  for (const written of [format?.type === "json" ? format.schema : undefined, toJsonSchema(schema)]) {
    expect(written).toHaveProperty("properties.field");
    const constraint = await grammars.constraint({ kind: "json_schema", schema: plainSchema(written) as object }, 200);
    constraint.dispose();
  }
});

test("what restricts an answer stays", () => {
  const schemas = [
    { type: "integer", minimum: -5, maximum: 999_999_999_999_998 },
    { type: "number", maximum: 2 ** 53 },
    { type: ["integer", "number"], maximum: 2 ** 53 },
    { type: "string", format: "date" },
    { type: "string", pattern: "^a$" },
    { type: "object", propertyNames: { type: "string", maxLength: 3 } },
    { enum: [{ format: "date", pattern: "x" }], const: { type: "integer", maximum: 2 ** 53 } },
    { properties: { format: { type: "string" }, pattern: { type: "string" } } },
    true,
  ];
  for (const schema of schemas) expect(plainSchema(schema)).toEqual(schema);
});

test("schemas are simplified at every depth, in response_format and in tools", () => {
  const integer = { type: "integer", minimum: -(2 ** 53), maximum: 2 ** 53 };
  const email = { type: "string", format: "email", pattern: "^a@b$" };
  const given = {
    $defs: { a: integer },
    properties: { b: { items: email }, c: { anyOf: [integer, { additionalProperties: email }] } },
  };
  const plain = {
    $defs: { a: { type: "integer" } },
    properties: {
      b: { items: { type: "string", pattern: "^a@b$" } },
      c: { anyOf: [{ type: "integer" }, { additionalProperties: { type: "string", pattern: "^a@b$" } }] },
    },
  };
  const request = (schema: object) => ({
    response_format: { type: "json_schema", json_schema: { name: "x", schema } },
    tools: [{ type: "function", function: { name: "f", parameters: schema } }],
    seed: 1,
  });
  expect(withPlainSchemas(request(given))).toEqual(request(plain));
});

test.each([
  {},
  { response_format: null, tools: null },
  { response_format: "json", tools: [null, 3, {}, { function: null }] },
  { response_format: { json_schema: 3 } },
])("what is malformed stays as it is: %j", (params) => {
  expect(withPlainSchemas(params)).toEqual(params);
});

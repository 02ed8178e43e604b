import Ajv from "ajv";
import fc from "fast-check";
import { beforeAll, expect, test } from "vitest";

import { RequestError } from "../../src/errors.js";
import { GrammarWasm } from "../../src/grammar/wasm.js";
import { isExhaustive, runs } from "../exhaustive.js";
import { accepts, expectRulesOrRefusal } from "./accepts.js";
import { VOCABULARY, demoGrammars, pick } from "./pick.js";
import { ANSWERS, REFUSED, SCHEMAS } from "./schemas.js";

const grammars = demoGrammars();
let wasm: GrammarWasm;
beforeAll(async () => {
  wasm = await GrammarWasm.load(VOCABULARY);
});

test.each(Object.entries(SCHEMAS))("%s: every answer is valid, also if maxTokens ends it", async (_, schema) => {
  const validate = new Ajv({ schemaId: "auto", format: "full", unknownFormats: "ignore", logger: false }).compile(
    schema as object,
  );
  const least = await grammars.constraint({ kind: "json_schema", schema }, 1).then(
    (constraint) => (constraint.dispose(), 1),
    (error: unknown) => (error as RequestError).details.needed as number,
  );
  const lengths = [...[least, least + 1, least + 10, least + 60].entries()];
  // The shortest answer, and one that ends by itself or is cut off.
  for (const [seed, maxTokens] of isExhaustive ? lengths : lengths.filter((_, index) => index % 3 === 0)) {
    const constraint = await grammars.constraint({ kind: "json_schema", schema }, maxTokens);
    const { text, tokens } = pick(constraint, maxTokens, seed);
    expect(tokens, text).toBeLessThanOrEqual(maxTokens);
    expect(constraint.complete, text).toBe(true);
    constraint.dispose();
    expect(validate(JSON.parse(text)), `${text}: ${JSON.stringify(validate.errors)}`).toBe(true);
  }
});

test.each(ANSWERS)("%s: right answers are accepted, wrong ones are rejected", (_, { schema, accepted, rejected }) => {
  const texts = [...accepted, ...rejected];
  const taken = accepts(wasm, { kind: "json_schema", schema }, texts);
  expect(texts.filter((_, index) => taken[index])).toEqual(accepted);
});

test.each(REFUSED)("%j is refused: %s", async (schema, message) => {
  const error: unknown = await grammars.constraint({ kind: "json_schema", schema }).catch((error: unknown) => error);
  expect(error).toBeInstanceOf(RequestError);
  expect((error as RequestError).message).toContain(message);
});

const KEYWORDS =
  "type enum const $ref $defs allOf anyOf oneOf items prefixItems maxItems a properties required " +
  "additionalProperties patternProperties propertyNames pattern minimum exclusiveMaximum minLength format";
const LEAF = fc.oneof(
  fc.constantFrom(null, true, false),
  fc.integer({ min: -9, max: 9 }),
  fc.double(),
  fc.constantFrom("string", "integer", "object", "array", "a", "#", "#/$defs/a"),
);

test("any JSON is a schema or refused", () => {
  const { schema } = fc.letrec((part) => ({
    schema: fc.oneof(
      { depthSize: "medium", withCrossShrink: true },
      LEAF,
      fc.array(part("schema"), { maxLength: 3 }),
      fc.dictionary(fc.constantFrom(...KEYWORDS.split(" ")), part("schema"), { maxKeys: 4 }),
    ),
  }));
  fc.assert(
    fc.property(schema, (schema) => {
      expectRulesOrRefusal({ kind: "json_schema", schema });
    }),
    { numRuns: runs(300, 1000), seed: 3 },
  );
});

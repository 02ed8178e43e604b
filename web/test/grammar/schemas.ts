// JSON Schemas of many kinds, the same for both runtimes. They use draft 7 if drafts differ, because the validator of
// the tests reads it.

import { readFileSync } from "node:fs";

interface Answers {
  readonly schema: object;
  readonly accepted: readonly string[];
  readonly rejected: readonly string[];
}
interface Vectors {
  readonly schemas: Readonly<Record<string, unknown>>;
  readonly answers: Readonly<Record<string, Answers>>;
  readonly refused: readonly (readonly [unknown, string])[];
}
const VECTORS = JSON.parse(
  readFileSync(new URL("../../../tests/conformance/json_schemas.json", import.meta.url), "utf8"),
) as Vectors;

export const SCHEMAS = VECTORS.schemas;

/** Schemas with JSON texts that they accept and reject. */
export const ANSWERS = Object.entries(VECTORS.answers);

/** Schemas that are refused, with a part of the message. {$text} stands for a text that is not JSON. */
export const REFUSED = VECTORS.refused.map(([schema, message]): readonly [unknown, string] => [
  (schema as { readonly $text?: string }).$text ?? schema,
  message,
]);

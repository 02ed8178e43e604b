// Writes the schema of a function's parameters as rules for the arguments of a tool call, in one of the syntaxes of a
// ToolFormatEntry. "gemma": `{key:<|"|>text<|"|>,other:[1,true]}`. "xml": `<parameter=key>` elements in a row, whose
// text is a string itself, or JSON for all other types.

import { RequestError } from "../../errors.js";
import type { ToolFormatEntry } from "../../runtime/manifest.js";
import type { RuleBook } from "./ebnf.js";
import { literal } from "./ebnf.js";
import { SchemaRules, schemaExpression } from "./json_schema.js";
import { MarkedStrings } from "./marked_strings.js";
import type { Schema } from "./schema_merge.js";
import { ObjectRules } from "./schema_objects.js";
import { isText } from "./schema_parts.js";

const WHERE = "The function's parameters";
const XML_END = "\n</parameter>\n";

/** The expression of the arguments. Throws RequestError. */
export function argumentsExpression(
  book: RuleBook,
  schema: Schema,
  syntax: ToolFormatEntry["arguments"] = "json",
): string {
  switch (syntax) {
    case "json":
      return schemaExpression(book, schema);
    case "gemma":
      book.spaced = false;
      return schemaExpression(
        book,
        schema,
        WHERE,
        new MarkedStrings(book, { begin: '<|"|>', end: '<|"|>', forbidden: "<|" }),
      );
    case "xml":
      return xmlExpression(book, schema);
  }
}

/** Throws RequestError, also if the schema is not an object's. */
function xmlExpression(book: RuleBook, schema: Schema): string {
  const rules = new SchemaRules(book, schema, WHERE);
  const expanded = rules.expand(schema, WHERE);
  if (
    typeof expanded === "boolean" ||
    ["anyOf", "oneOf", "allOf", "const", "enum"].some((keyword) => keyword in expanded)
  ) {
    throw new RequestError(`${WHERE}: must be the schema of one object, without anyOf, oneOf, allOf or constants`);
  }
  const expression = new XmlObject(book, rules).of(expanded, WHERE);
  if (expression === null) throw new RequestError(`${WHERE} allows no value at all`);
  return expression;
}

/** The elements of one object; nothing stands between them. */
class XmlObject extends ObjectRules {
  protected override readonly begin = '""';
  protected override readonly end = '""';
  protected override readonly separator = '""';

  constructor(book: RuleBook, rules: SchemaRules) {
    const texts = new MarkedStrings(book, { begin: "", end: XML_END, forbidden: "</parameter>" });
    const value = (schema: unknown, where: string): string | null => {
      const expanded = rules.expand(schema as Schema, where);
      if (expanded === true) return texts.any();
      if (expanded === false || !isText(expanded)) {
        const inside = rules.of(schema, where);
        return inside === null ? null : `${inside} ${literal(XML_END)}`;
      }
      const { const: constant, enum: values = constant === undefined ? undefined : [constant] } = expanded;
      if (!Array.isArray(values)) return texts.of(expanded, where);
      const ways = values
        .filter((each) => typeof each === "string")
        .map((each) => literal(texts.constant(each, where)));
      return ways.length === 0 ? null : `(${ways.join(" | ")})`;
    };
    super(book, texts, value, (schema, where) => rules.expand(schema, where));
  }

  protected override member(key: string, value: string): string {
    return `${literal("<parameter=")} ${key} ${literal(">\n")} ${value}`;
  }
}

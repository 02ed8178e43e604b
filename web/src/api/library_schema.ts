// JSON schemas as validation libraries such as Zod write them, in the keywords that a grammar can enforce. Libraries add to a schema what it says anyway.

type Schema = Readonly<Record<string, unknown>>;

/** The largest integer that a grammar generates: 15 digits. */
const LARGEST_INTEGER = 999_999_999_999_999;
// The keywords whose values are schemas, lists of schemas, and schemas by name.
const SCHEMA: ReadonlySet<string> = new Set(["items", "additionalItems", "additionalProperties"]);
const SCHEMA_LIST: ReadonlySet<string> = new Set(["items", "prefixItems", "anyOf", "oneOf", "allOf"]);
const SCHEMA_MAP: ReadonlySet<string> = new Set(["properties", "patternProperties", "$defs", "definitions"]);

/** The request with its schemas so simplified: that of response_format, and those of tools. What is malformed stays, for the engine to refuse. */
export function withPlainSchemas<T extends object>(params: T): T {
  const { response_format: format, tools } = params as { readonly response_format?: unknown; readonly tools?: unknown };
  return {
    ...params,
    ...(isObject(format) &&
      isObject(format.json_schema) && {
        response_format: {
          ...format,
          json_schema: { ...format.json_schema, schema: plainSchema(format.json_schema.schema) },
        },
      }),
    ...(Array.isArray(tools) && { tools: tools.map(plainTool) }),
  };
}

/**
 * The schema without three things that grammars refuse: bounds of integers that no generated integer exceeds, names of properties that must be strings,
 * and a format beside a pattern. With both, the pattern decides, because JSON Schema's formats are annotations by default.
 */
export function plainSchema(schema: unknown): unknown {
  if (!isObject(schema)) return schema;
  const types = Array.isArray(schema.type) ? (schema.type as unknown[]) : [schema.type];
  const isInteger = types.includes("integer") && !types.includes("number");
  const isRedundant = (key: string, value: unknown): boolean => {
    if (key === "format") return typeof schema.pattern === "string";
    if (key === "propertyNames") return isObject(value) && Object.keys(value).length === 1 && value.type === "string";
    if (key === "minimum") return isInteger && typeof value === "number" && value <= -LARGEST_INTEGER;
    return key === "maximum" && isInteger && typeof value === "number" && value >= LARGEST_INTEGER;
  };
  const kept = Object.entries(schema).filter(([key, value]) => !isRedundant(key, value));
  return Object.fromEntries(kept.map(([key, value]) => [key, withinKeyword(key, value)]));
}

function plainTool(tool: unknown): unknown {
  if (!isObject(tool) || !isObject(tool.function) || tool.function.parameters === undefined) return tool;
  return { ...tool, function: { ...tool.function, parameters: plainSchema(tool.function.parameters) } };
}

function withinKeyword(key: string, value: unknown): unknown {
  if (SCHEMA_LIST.has(key) && Array.isArray(value)) return value.map(plainSchema);
  if (SCHEMA.has(key)) return plainSchema(value);
  if (SCHEMA_MAP.has(key) && isObject(value))
    return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, plainSchema(part)]));
  return value;
}

function isObject(value: unknown): value is Schema {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

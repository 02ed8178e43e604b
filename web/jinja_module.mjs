// Makes @huggingface/jinja smaller: it removes code that nothing here uses and that no bundler can remove, and replaces
// names that no bundler shortens. It also makes the package write values as Python's Jinja does, and as chat templates
// expect: True, None, and the repr of lists and objects, which the package writes as JSON or leaves out.

import { readFile } from "node:fs/promises";

// Each part of the package's file, and its replacement.
const CHANGES = [
  // The formatter of templates.
  [/\n\/\/ src\/format\.ts\n.*?(?=\n\/\/ src\/index\.ts\n)/s, ""],
  ['return format(this.parsed, options?.indent || "\t");', ""],
  // The helper that writes static fields for old browsers.
  [/^var __defProp = .*?\n};\n/s, "var __publicField = (obj, key, value) => { obj[key] = value; };\n"],
  // The object of token types, as constants.
  [
    /var TOKEN_TYPES = Object\.freeze\(\{(.*?)\n\}\);/s,
    (_, rows) => rows.replace(/^ {2}(\w+): ("\w+"),?$/gm, "var TOKEN_TYPES_$1 = $2;"),
  ],
];

/** Python's repr of a value. A noncharacter of our own, U+FDD0, stays as it is. */
const PYTHON_REPR = `
function pythonRepr(value) {
  switch (value.type) {
    case "ArrayValue": return "[" + value.value.map(pythonRepr).join(", ") + "]";
    case "ObjectValue":
      return "{" + Array.from(value.value, ([key, item]) => pythonString(key) + ": " + pythonRepr(item)).join(", ") + "}";
    case "StringValue": return pythonString(value.value);
    default: return value.toString();
  }
}
function pythonString(text) {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  const escaped = text.replace(/[\\\\'"]|(?![ \\ufdd0])[\\p{C}\\p{Z}]/gu, (character) => {
    const code = character.codePointAt(0);
    const known = { 9: "\\\\t", 10: "\\\\n", 13: "\\\\r" }[code];
    if (known) return known;
    if (code === 92 || character === quote) return "\\\\" + character;
    if (code === 34 || code === 39) return character;
    const digits = code < 256 ? 2 : code < 65536 ? 4 : 8;
    return "\\\\" + { 2: "x", 4: "u", 8: "U" }[digits] + code.toString(16).padStart(digits, "0");
  });
  return quote + escaped + quote;
}
`;

// Each part of the package's file that differs from Python, and its replacement.
const PYTHON = [
  [
    'type = "BooleanValue";\n',
    'type = "BooleanValue";\n  toString() {\n    return this.value ? "True" : "False";\n  }\n',
  ],
  ['type = "NullValue";\n', 'type = "NullValue";\n  toString() {\n    return "None";\n  }\n'],
  ["return toJSON(this, {}, 0, false);", "return pythonRepr(this);"],
  ["return new StringValue(toJSON(operand, {}, 0, false));", "return new StringValue(pythonRepr(operand));"],
  ['return new StringValue(operand.value ? "true" : "false");', "return new StringValue(operand.toString());"],
  ["operand.value.map((x) => x.value).join(", "operand.value.map((x) => x.toString()).join("],
  [
    "return new StringValue(left.value.toString() + right.value.toString());\n    } else",
    "return new StringValue(left.toString() + right.toString());\n    } else",
  ],
  // Python refuses to add a string and a value of another type.
  [
    "if (left instanceof StringValue || right instanceof StringValue) {",
    "if (left instanceof StringValue && right instanceof StringValue) {",
  ],
  [
    'case "length":\n            return new IntegerValue(operand.value.size);',
    'case "string":\n            return new StringValue(pythonRepr(operand));\n          case "length":\n            return new IntegerValue(operand.value.size);',
  ],
  [
    'if (lastEvaluated.type !== "NullValue" && lastEvaluated.type !== "UndefinedValue") {',
    'if (lastEvaluated.type !== "UndefinedValue" && !["Set", "Macro", "Comment"].includes(statement.type)) {',
  ],
  [
    'if (filter.value === "safe") {',
    'if (operand instanceof NullValue && filter.value === "string") {\n        return new StringValue("None");\n      }\n      if (filter.value === "safe") {',
  ],
  // What an iteration has written before "continue" or "break" stays. Both are thrown, with what was written.
  ["var BreakControl = class extends Error {\n};\nvar ContinueControl = class extends Error {\n};\n", ""],
  ["throw new BreakControl();", 'throw { value: "", stops: true };'],
  ["throw new ContinueControl();", 'throw { value: "" };'],
  [
    "const lastEvaluated = this.evaluate(statement, environment);\n",
    `let lastEvaluated;
      try {
        lastEvaluated = this.evaluate(statement, environment);
      } catch (err) {
        err.value = result + err.value;
        throw err;
      }
`,
  ],
  [
    /if \(err instanceof ContinueControl\) \{.*?throw err;\n/s,
    "if (err instanceof Error) throw err;\n        result += err.value;\n        if (err.stops) break;\n        continue;\n",
  ],
  ["var ObjectValue = class", `${PYTHON_REPR}var ObjectValue = class`],
];

/** Throws if a part is missing. */
export function replaced(contents, changes, path) {
  for (const [from, to] of changes) {
    if (contents.split(from).length < 2)
      throw new Error(`${path} does not contain ${from}; adapt its replacements to this version of the package`);
    contents = typeof from === "string" ? contents.replaceAll(from, () => to) : contents.replace(from, to);
  }
  return contents;
}

/** A plugin for Vite, for tests. */
export const jinjaVite = {
  name: "jinja-python",
  enforce: "pre",
  transform(code, id) {
    return /@huggingface[\\/]jinja[\\/]dist[\\/]index\.js$/.test(id) ? replaced(code, PYTHON, id) : undefined;
  },
};

/** The interpreter's own methods, with numbers for names. */
function numberMethods(contents) {
  const name =
    /\b(?:evaluate[A-Z]|evalProgram|applyFilter|bindMacroArguments|declareVariable|setVariable|lookupVariable)\w*/g;
  const names = [...new Set(contents.match(name))];
  return contents.replace(name, (method) => `e${names.indexOf(method)}`);
}

/** A plugin for esbuild. Throws for a version of the package that has another form. */
export const jinjaEsbuild = {
  name: "jinja-smaller",
  setup(build) {
    build.onLoad({ filter: /@huggingface[\\/]jinja[\\/]dist[\\/]index\.js$/ }, async ({ path }) => {
      const contents = replaced(await readFile(path, "utf8"), [...CHANGES, ...PYTHON], path);
      return { contents: numberMethods(contents.replaceAll("TOKEN_TYPES.", "TOKEN_TYPES_")), loader: "js" };
    });
  },
};

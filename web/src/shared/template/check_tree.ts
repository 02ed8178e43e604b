// Checks that a value is the syntax tree of a template, which compiler/runtime/text/template_tree.py describes: the kinds of its
// parts, and how many of which each has.

/** The path of the first part that is wrong, such as "[1][0]"; null if there is none. */
type Check = (value: unknown, path: string) => string | null;
/** The parts behind the kind of a list. The last ``optional`` ones may be missing; ``rest`` repeats behind them. */
interface Parts {
  readonly parts: readonly Check[];
  readonly optional?: number;
  readonly rest?: readonly Check[];
}

/** Deeper trees are refused, so that none exhausts the stack. */
const MOST_PATH = 4000;

const has =
  (test: (value: unknown) => boolean): Check =>
  (value, path) =>
    test(value) ? null : path;
const name = has((value) => typeof value === "string");
const nullable =
  (check: Check): Check =>
  (value, path) =>
    value === null ? null : check(value, path);
/** A list of these parts. */
const row =
  (...parts: readonly Check[]): Check =>
  (value, path) =>
    Array.isArray(value) ? partsAt({ parts }, value, path, 0) : path;
const list =
  (check: Check): Check =>
  (value, path) =>
    Array.isArray(value) ? partsAt({ parts: [], rest: [check] }, value, path, 0) : path;
const all = (...parts: readonly Check[]): Parts => ({ parts });

const scope = has(
  (value) =>
    typeof value === "object" &&
    value !== null &&
    !Array.isArray(value) &&
    Object.values(value).every((from) => from === 0 || from === 1 || from === 2),
);
const expression: Check = (value, path) =>
  value === null || typeof value === "string" || typeof value === "boolean" || Number.isSafeInteger(value)
    ? null
    : kindAt(EXPRESSIONS, value, path);
const target: Check = (value, path) => (typeof value === "string" ? null : kindAt(TARGETS, value, path));
const body = list((value, path) => (typeof value === "string" ? null : kindAt(STATEMENTS, value, path)));
const operator = has((value) => ["==", "!=", "<", "<=", ">", ">=", "in", "not in"].includes(value as string));

const MACRO = [scope, list(name), list(expression), body, list(name)];
const one = nullable(row(expression));
const CALL = [list(expression), list(row(name, expression)), one, one];
const call: Check = (value, path) =>
  Array.isArray(value) && value[0] === "()" ? kindAt(EXPRESSIONS, value, path) : path;
const called = (...parts: readonly Check[]): Parts => ({ parts: [...parts, ...CALL], optional: CALL.length });

const TARGETS: ReadonlyMap<unknown, Parts> = new Map([
  ["namespace", all(name, name)],
  ["tuple", { parts: [], rest: [target] }],
]);
const STATEMENTS: ReadonlyMap<unknown, Parts> = new Map([
  ["out", all(expression)],
  ["if", all(list(row(expression, body)), body)],
  [
    "for",
    all(
      target,
      expression,
      scope,
      body,
      nullable(row(scope, body)),
      nullable(row(scope, expression)),
      has((value) => value === 0 || value === 1 || value === 2),
    ),
  ],
  ["set", all(target, expression)],
  ["capture", all(target, scope, body, nullable(expression))],
  ["macro", all(name, ...MACRO)],
  ["call", all(call, ...MACRO)],
  ["filter", all(scope, body, expression)],
  ["with", all(scope, list(row(target, expression)), body)],
  ["scope", all(scope, body)],
  ["break", all()],
  ["continue", all()],
]);
const EXPRESSIONS: ReadonlyMap<unknown, Parts> = new Map([
  ["body", all()],
  ["name", all(name)],
  ["float", all(name)],
  ["int", all(name)],
  ...["tuple", "list", "~"].map((kind): [string, Parts] => [kind, { parts: [], rest: [expression] }]),
  ["dict", { parts: [], rest: [expression, expression] }],
  ["?", { parts: [expression, expression, expression], optional: 1 }],
  ["compare", { parts: [expression], rest: [operator, expression] }],
  [".", all(expression, name)],
  ["[", all(expression, expression)],
  [":", all(expression, nullable(expression), nullable(expression), nullable(expression))],
  ["|", called(expression, name)],
  ["is", called(expression, name)],
  ["()", called(expression)],
  ...["not", "neg", "pos"].map((kind): [string, Parts] => [kind, all(expression)]),
  ...["+", "-", "*", "/", "//", "%", "**", "and", "or"].map((kind): [string, Parts] => [
    kind,
    all(expression, expression),
  ]),
]);

/** The path of the first part of a tree that is wrong; null if it is a tree. */
export const wrongPart = (tree: unknown): string | null => row(scope, body)(tree, "");

function kindAt(kinds: ReadonlyMap<unknown, Parts>, value: unknown, path: string): string | null {
  const parts = Array.isArray(value) ? kinds.get(value[0]) : undefined;
  return parts === undefined || path.length > MOST_PATH ? path : partsAt(parts, value as readonly unknown[], path, 1);
}

/** ``first``: where the parts begin in the list. */
function partsAt(
  { parts, optional = 0, rest = [] }: Parts,
  found: readonly unknown[],
  path: string,
  first: number,
): string | null {
  const more = found.length - first - parts.length;
  if (more < -optional || (more > 0 && (rest.length === 0 || more % rest.length > 0))) return path;
  for (let index = first; index < found.length; index++) {
    const place = index - first;
    const check = parts[place] ?? rest[(place - parts.length) % rest.length];
    const wrong = check?.(found[index], `${path}[${index}]`) ?? null;
    if (wrong !== null) return wrong;
  }
  return null;
}

// Evaluates the syntax tree of a chat template, which compiler/runtime/text/template_tree.py writes and describes.

import { attribute, element } from "./attributes.js";
import { OPEN_FILTERS, callFilter } from "./filters.js";
import { GLOBALS } from "./globals.js";
import { binary, negated, positive, slice } from "./operators.js";
import { callOpenFilter } from "./sequence_filters.js";
import type { ScopeNames } from "./scope.js";
import { Scope } from "./scope.js";
import { callTest } from "./tests.js";
import type { Named, Value } from "./values.js";
import {
  Callable,
  Dict,
  Iterator,
  Loop,
  Namespace,
  TemplateError,
  Tuple,
  Undefined,
  compare,
  contains,
  equal,
  isList,
  iterate,
  repr,
  str,
  textOf,
  truth,
  typeName,
} from "./values.js";

/** A part of a tree: plain JSON. */
export type Node = null | boolean | number | string | readonly Node[] | ScopeNames;
type List = readonly Node[];
export type Tree = readonly [ScopeNames, List];

/** How a list of statements ended. */
type Ending = "break" | "continue" | undefined;

/** The maximum number of characters of a prompt, as in Python. */
const MAX_PROMPT_CHARACTERS = 16 * 2 ** 20;
/** Printed lists and objects, whose repr escapes U+FDD0, write it as it is. */
const ESCAPED_SENTINEL = /(?<!\\)((?:\\\\)*)\\ufdd0/g;

/** The text of a template. Throws TemplateError, and Refusal for what the template itself refuses. */
export function evaluate([names, body]: Tree, given: ReadonlyMap<string, Value>, now: Date): string {
  const values = new Map([...GLOBALS(now), ...given]);
  const out: string[] = [];
  new Evaluation().run(body, new Scope(values, null, names), out);
  return out.join("");
}

export const restoreSentinels = (escaped: string): string => escaped.replace(ESCAPED_SENTINEL, "$1\ufdd0");

class Evaluation {
  #written = 0;

  run(body: List, scope: Scope, out: string[]): Ending {
    for (const statement of body) {
      const ending =
        typeof statement === "string" ? this.write(statement, out) : this.statement(statement as List, scope, out);
      if (ending !== undefined) return ending;
    }
    return undefined;
  }

  private write(text: string, out: string[]): Ending {
    out.push(text);
    this.#written += text.length;
    if (this.#written > MAX_PROMPT_CHARACTERS)
      throw new TemplateError(`it writes more than ${MAX_PROMPT_CHARACTERS} characters`);
    return undefined;
  }

  private statement([kind, ...parts]: List, scope: Scope, out: string[]): Ending {
    switch (kind as string) {
      case "out":
        return this.write(printed(this.value(parts[0], scope)), out);
      case "if": {
        const [branches, other] = parts as [readonly [Node, List][], List];
        const [, body] = branches.find(([test]) => truth(this.value(test, scope))) ?? [null, other];
        return this.run(body, scope, out);
      }
      case "for":
        return this.loop(parts, scope, out);
      case "set":
        assign(parts[0], scope, () => this.value(parts[1], scope));
        return undefined;
      case "capture": {
        const [target, names, body, filter] = parts as [Node, ScopeNames, List, Node];
        const inner = scope.inner(names);
        const captured: string[] = [];
        // A break or continue drops what the block has written.
        const ending = this.run(body, inner, captured);
        if (ending !== undefined) return ending;
        const text = captured.join("");
        assign(target, scope, () => (filter === null ? text : this.value(filter, inner, text)));
        return undefined;
      }
      case "macro":
        scope.set(parts[0] as string, this.macro(parts, scope));
        return undefined;
      case "call": {
        const [call, ...macro] = parts;
        const caller = this.macro([null, ...macro], scope);
        return this.write(textual(this.call((call as List).slice(1), scope, caller)), out);
      }
      case "filter": {
        const [names, body, filter] = parts as [ScopeNames, List, Node];
        const inner = scope.inner(names);
        const captured: string[] = [];
        const ending = this.run(body, inner, captured);
        return ending ?? this.write(textual(this.value(filter, inner, captured.join(""))), out);
      }
      case "with": {
        const [names, pairs, body] = parts as [ScopeNames, readonly [Node, Node][], List];
        const inner = scope.inner(names);
        for (const [target, value] of pairs) assign(target, inner, () => this.value(value, scope));
        return this.run(body, inner, out);
      }
      case "scope": {
        const [names, body] = parts as [ScopeNames, List];
        return this.run(body, scope.inner(names), out);
      }
      case "break":
        return "break";
      case "continue":
        return "continue";
    }
    throw new TemplateError(`the tree has an unknown statement: ${JSON.stringify(kind)}`);
  }

  private loop(parts: List, scope: Scope, out: string[]): Ending {
    const [target, values, names, body, other, test, kind] = parts as [
      Node,
      Node,
      ScopeNames,
      List,
      readonly [ScopeNames, List] | null,
      readonly [ScopeNames, Node] | null,
      0 | 1 | 2,
    ];
    const iteration = (value: Value, depth: number, to: string[]): Ending => {
      const inner = scope.inner(names);
      const chosen = test === null ? value : new Iterator(this.filtered(value, target, test, scope));
      const recurse =
        kind < 2
          ? undefined
          : (items: Value, level: number): Value => {
              const part: string[] = [];
              iteration(items, level, part);
              return part.join("");
            };
      const loop = new Loop(chosen, new Iterator(iterate(chosen)), depth, recurse);
      if (kind > 0) inner.set("loop", loop);
      let empty = true;
      for (let item = loop.advance(); item !== undefined; item = loop.advance()) {
        assign(target, inner, () => item);
        inner.enter();
        const ending = this.run(body, inner, to);
        // In Jinja2, the other part also follows a loop none of whose iterations has reached its end.
        if (ending === undefined) empty = false;
        if (ending === "break") break;
      }
      // In the other part, break and continue are those of the enclosing loop.
      return empty && other !== null ? this.run(other[1], scope.inner(other[0]), to) : undefined;
    };
    return iteration(this.value(values, scope), 0, out);
  }

  private *filtered(
    values: Value,
    target: Node,
    [names, test]: readonly [ScopeNames, Node],
    scope: Scope,
  ): Generator<Value, void> {
    const inner = scope.inner(names);
    for (const item of iterate(values)) {
      assign(target, inner, () => item);
      if (truth(this.value(test, inner))) yield Array.isArray(target) ? new Tuple([...iterate(item)]) : item;
    }
  }

  private macro(parts: List, scope: Scope): Callable {
    const [name, names, parameters, defaults, body, special] = parts as [
      string | null,
      ScopeNames,
      readonly string[],
      List,
      List,
      readonly string[],
    ];
    const reads = (variable: string): boolean => special.includes(variable) && !parameters.includes(variable);
    const label = name ?? "";
    const attributes = new Map<string, Value>([
      ["name", name],
      ["arguments", new Tuple(parameters)],
      ["catch_kwargs", reads("kwargs")],
      ["catch_varargs", reads("varargs")],
      ["caller", special.includes("caller")],
      ["explicit_caller", parameters.includes("caller")],
    ]);
    const call = (args: readonly Value[], named: Named): Value => {
      const inner = scope.inner(names);
      const rest = new Map(named);
      const values = parameters.map((parameter, index) => {
        if (index < args.length) return args[index];
        const value = rest.get(parameter);
        rest.delete(parameter);
        return value;
      });
      if (special.includes("caller") && !parameters.includes("caller")) {
        inner.set("caller", rest.get("caller") ?? new Undefined("No caller defined"));
        rest.delete("caller");
      }
      if (reads("kwargs")) inner.set("kwargs", new Dict(rest));
      else if (rest.size > 0)
        throw new TemplateError(`macro '${label}' takes no keyword argument '${[...rest.keys()][0] ?? ""}'`);
      if (reads("varargs")) inner.set("varargs", new Tuple(args.slice(parameters.length)));
      else if (args.length > parameters.length)
        throw new TemplateError(`macro '${label}' takes not more than ${parameters.length} argument(s)`);
      // A default may use the parameters before it.
      for (const [index, parameter] of parameters.entries()) inner.set(parameter, values[index]);
      for (const [index, parameter] of parameters.entries()) {
        if (values[index] !== undefined) continue;
        const at = index - parameters.length + defaults.length;
        const missing = new Undefined(`parameter '${parameter}' was not provided`);
        inner.set(parameter, at < 0 ? missing : this.value(defaults[at], inner));
      }
      const out: string[] = [];
      this.run(body, inner, out);
      return out.join("");
    };
    return new Callable(label, call, attributes);
  }

  /** ``text`` is the input of a filter that is applied to a block. */
  private value(node: Node | undefined, scope: Scope, text = ""): Value {
    if (node === null || node === undefined || typeof node === "boolean" || typeof node === "string")
      return node ?? null;
    if (typeof node === "number") return BigInt(node);
    const [kind, ...parts] = node as List;
    const at = (index: number): Value => this.value(parts[index], scope, text);
    const all = (): readonly Value[] => parts.map((_, index) => at(index));
    switch (kind as string) {
      case "body":
        return text;
      case "name":
        return scope.get(parts[0] as string);
      case "float":
        return Number((parts[0] as string).replace("inf", "Infinity"));
      case "int":
        return BigInt(parts[0] as string);
      case "list":
        return all();
      case "tuple":
        return new Tuple(all());
      case "dict": {
        const values = all();
        const keys = values.filter((_, index) => index % 2 === 0);
        return new Dict(keys.map((key, index) => [key, values[2 * index + 1] as Value]));
      }
      case "?":
        if (truth(at(0))) return at(1);
        return parts.length > 2 ? at(2) : new Undefined("an inline if without else was false");
      case "~":
        return all().map(str).join("");
      case "compare":
        return this.compared(parts, scope);
      case ".":
        return attribute(at(0), parts[1] as string);
      case "[":
        return element(at(0), at(1));
      case ":":
        return slice(at(0), at(1), at(2), at(3));
      case "|":
        return this.filter(at(0), parts[1] as string, ...this.given(parts.slice(2), scope));
      case "is":
        return callTest(parts[1] as string, at(0), ...this.given(parts.slice(2), scope));
      case "()":
        return this.call(parts, scope);
      case "not":
        return !truth(at(0));
      case "neg":
        return negated(at(0));
      case "pos":
        return positive(at(0));
      case "and":
      case "or": {
        const left = at(0);
        return truth(left) === (kind === "and") ? at(1) : left;
      }
    }
    return binary(kind as string, at(0), at(1));
  }

  private compared([first, ...rest]: List, scope: Scope): Value {
    let left = this.value(first, scope);
    for (let index = 0; index < rest.length; index += 2) {
      const right = this.value(rest[index + 1], scope);
      if (!holds(rest[index] as string, left, right)) return false;
      left = right;
    }
    return true;
  }

  private filter(value: Value, name: string, args: readonly Value[], named: Named): Value {
    if (!OPEN_FILTERS.includes(name) || name === "format") return callFilter(name, value, args, named);
    return callOpenFilter(name, value, args, named, (each, item, rest, options) =>
      this.filter(item, each, rest, options),
    );
  }

  private given([args, named, more, members]: List, scope: Scope): [readonly Value[], Named] {
    const values = ((args ?? []) as List).map((each) => this.value(each, scope));
    const names = new Map(
      ((named ?? []) as readonly [string, Node][]).map(([key, each]) => [key, this.value(each, scope)]),
    );
    if (more) values.push(...iterate(this.value((more as List)[0], scope)));
    if (members) {
      const mapping = this.value((members as List)[0], scope);
      if (!(mapping instanceof Dict))
        throw new TemplateError(`argument after ** must be a mapping, not ${typeName(mapping)}`);
      for (const [key, each] of mapping.pairs()) {
        const name = textOf(key);
        if (name === undefined || names.has(name)) throw new TemplateError(`the keyword ${repr(key)} is not valid`);
        names.set(name, each);
      }
    }
    return [values, names];
  }

  private call([callee, ...parts]: List, scope: Scope, caller?: Callable): Value {
    const called = this.value(callee, scope);
    const [args, named] = this.given(parts, scope);
    const names = caller === undefined ? named : new Map([...named, ["caller", caller] as const]);
    if (called instanceof Undefined) return called.fail();
    if (called instanceof Loop) {
      const [items] = args;
      if (called.recurse === undefined)
        throw new TemplateError("The loop must have the 'recursive' marker to be called recursively.");
      if (items === undefined || args.length + names.size > 1) throw new TemplateError("loop() takes one argument");
      return called.recurse(items, called.depth0 + 1);
    }
    if (!(called instanceof Callable)) throw new TemplateError(`'${typeName(called)}' object is not callable`);
    return called.call(args, names);
  }
}

/** What a block writes must be a text. */
function textual(value: Value): string {
  const text = textOf(value);
  if (text === undefined) throw new TemplateError(`a block writes a ${typeName(value)}, expected str`);
  return text;
}

/** The text of `{{ value }}`. */
function printed(value: Value): string {
  const text = str(value);
  return isList(value) || value instanceof Tuple || value instanceof Dict ? restoreSentinels(text) : text;
}

function holds(operator: string, left: Value, right: Value): boolean {
  switch (operator) {
    case "==":
      return equal(left, right);
    case "!=":
      return !equal(left, right);
    case "in":
      return contains(right, left);
    case "not in":
      return !contains(right, left);
    case "<":
      return compare(left, right) < 0;
    case "<=":
      return compare(left, right) <= 0;
    case ">":
      return compare(left, right) > 0;
    default:
      return compare(left, right) >= 0;
  }
}

/** Assigns to a name, to an attribute of a namespace, or to several of them. */
function assign(target: Node | undefined, scope: Scope, read: () => Value): void {
  for (const name of namespacesOf(target)) {
    if (!(scope.get(name) instanceof Namespace))
      throw new TemplateError("cannot assign attribute on non-namespace object");
  }
  store(target, scope, read());
}

function namespacesOf(target: Node | undefined): readonly string[] {
  if (!isArray(target)) return [];
  return target[0] === "namespace" ? [target[1] as string] : target.slice(1).flatMap(namespacesOf);
}

const isArray = (node: Node | undefined): node is List => Array.isArray(node);

function store(target: Node | undefined, scope: Scope, value: Value): void {
  if (typeof target === "string") {
    scope.set(target, value);
    return;
  }
  const [kind, ...parts] = target as List;
  if (kind === "namespace") {
    const [name, key] = parts as [string, string];
    if (key.startsWith("_")) throw new TemplateError(`a namespace cannot hold '${key}'`);
    (scope.get(name) as Namespace).values.set(key, value);
    return;
  }
  const values = [...iterate(value)];
  if (values.length !== parts.length)
    throw new TemplateError(`${values.length} values cannot be assigned to ${parts.length} names`);
  for (const [index, part] of parts.entries()) store(part, scope, values[index] as Value);
}

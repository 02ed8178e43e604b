// The functions that every template may call.

import { integer } from "./operators.js";
import { bind } from "./parameters.js";
import { strftime } from "./strftime.js";
import type { Named, Value } from "./values.js";
import { Callable, Dict, Namespace, Range, TemplateError, Unsupported, iterate, repr, str, textOf } from "./values.js";

/** Thrown by a template's own `raise_exception`. */
export class Refusal extends TemplateError {}

const MAX_RANGE = 100_000;

/** The functions by name. ``now`` is the time that templates write. */
export function GLOBALS(now: Date): readonly (readonly [string, Value])[] {
  const lacking = (name: string): Callable =>
    new Callable(name, () => {
      throw new Unsupported(`the function '${name}' is not supported`);
    });
  return [
    ...[
      new Callable("range", range),
      new Callable("dict", (args, named) => dict("dict", args, named)),
      new Callable("namespace", namespace),
      new Callable("raise_exception", (args, named) => {
        throw new Refusal(str(bind("raise_exception", "message", args, named)[0] ?? null));
      }),
      new Callable("strftime_now", (args, named) => {
        const pattern = textOf(bind("strftime_now", "pattern", args, named)[0] ?? null);
        if (pattern === undefined) throw new TemplateError("strftime_now: the pattern must be a text");
        return strftime(pattern, now);
      }),
    ],
    ...["cycler", "joiner", "lipsum"].map(lacking),
  ].map((each) => [each.name, each]);
}

/** Functions of Python's engine that templates cannot call here. */
export const LACKING_FUNCTIONS = ["cycler", "joiner", "lipsum"];

function range(args: readonly Value[], named: Named): Value {
  const given = bind("range", "start stop? step? |", args, named).filter((each) => each !== undefined);
  const [first = 0n, second, third = 1n] = given.map((each) => BigInt(integer(each)));
  const [start, stop] = second === undefined ? [0n, first] : [first, second];
  if (third === 0n) throw new TemplateError("range() arg 3 must not be zero");
  const made = new Range(start, stop, third);
  if (made.length > MAX_RANGE) throw new TemplateError(`Range too big; at most ${MAX_RANGE}`);
  return made;
}

function dict(name: string, args: readonly Value[], named: Named): Dict {
  if (args.length > 1) throw new TemplateError(`${name} expected at most 1 argument, got ${args.length}`);
  const result = new Dict();
  const [source] = args;
  if (source instanceof Dict) for (const [key, value] of source.pairs()) result.set(key, value);
  else if (source !== undefined) {
    for (const pair of iterate(source)) {
      const [key, value, ...rest] = [...iterate(pair)];
      if (key === undefined || value === undefined || rest.length > 0)
        throw new TemplateError(`${name} update sequence element has another length than 2`);
      result.set(key, value);
    }
  }
  for (const [key, value] of named) result.set(key, value);
  return result;
}

function namespace(args: readonly Value[], named: Named): Value {
  const values = dict("namespace", args, named);
  const wrong = values.keys().find((key) => textOf(key)?.startsWith("_") === true);
  if (wrong !== undefined) throw new TemplateError(`a namespace cannot hold ${repr(wrong)}`);
  return new Namespace(values);
}

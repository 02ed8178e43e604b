// The functions that every template may call.

import { integer } from "./operators.js";
import { bind } from "./parameters.js";
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

// Python's strftime in the C locale, for the template's `strftime_now`.

const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS = "January February March April May June July August September October November December".split(" ");

function strftime(pattern: string, date: Date): string {
  const two = (value: number, fill = "0"): string => String(value).padStart(2, fill);
  const [year, month, day, weekday] = [date.getFullYear(), date.getMonth(), date.getDate(), date.getDay()];
  const hour12 = date.getHours() % 12 || 12;
  const dayOfYear = Math.round((Date.UTC(year, month, day) - Date.UTC(year, 0, 1)) / 86_400_000) + 1;
  const fields: Record<string, () => string> = {
    a: () => DAYS[weekday]?.slice(0, 3) ?? "",
    A: () => DAYS[weekday] ?? "",
    b: () => MONTHS[month]?.slice(0, 3) ?? "",
    B: () => MONTHS[month] ?? "",
    c: () => strftime("%a %b %e %H:%M:%S %Y", date),
    d: () => two(day),
    D: () => strftime("%m/%d/%y", date),
    e: () => two(day, " "),
    f: () => String(date.getMilliseconds() * 1000).padStart(6, "0"),
    F: () => strftime("%Y-%m-%d", date),
    h: () => strftime("%b", date),
    H: () => two(date.getHours()),
    I: () => two(hour12),
    j: () => String(dayOfYear).padStart(3, "0"),
    m: () => two(month + 1),
    M: () => two(date.getMinutes()),
    n: () => "\n",
    p: () => (date.getHours() < 12 ? "AM" : "PM"),
    r: () => strftime("%I:%M:%S %p", date),
    R: () => strftime("%H:%M", date),
    S: () => two(date.getSeconds()),
    t: () => "\t",
    T: () => strftime("%H:%M:%S", date),
    u: () => String(weekday || 7),
    U: () => two(Math.floor((dayOfYear + 6 - weekday) / 7)),
    w: () => String(weekday),
    W: () => two(Math.floor((dayOfYear + 6 - ((weekday + 6) % 7)) / 7)),
    x: () => strftime("%m/%d/%y", date),
    X: () => strftime("%H:%M:%S", date),
    y: () => two(year % 100),
    Y: () => String(year),
    // datetime.now() has no time zone.
    z: () => "",
    Z: () => "",
    "%": () => "%",
  };
  return pattern.replace(/%(-?)([^]?)/gu, (match, bare: string, letter: string) => {
    const field = fields[letter];
    if (field === undefined) throw new Unsupported(`strftime_now: the field '${match}' is not supported`);
    return bare === "" ? field() : field().replace(/^[0 ]+(?=\d)/, "");
  });
}

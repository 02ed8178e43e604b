// Binds the arguments of a call to the parameters of a function of Python's.

import type { Named, Value } from "./values.js";
import { TemplateError } from "./values.js";

/**
 * The values of ``parameters``, which are names separated by spaces; undefined for those that are not given. A name that
 * ends in "?" is optional; those before "|" are given only by position.
 */
export function bind(
  name: string,
  parameters: string,
  args: readonly Value[],
  named: Named,
): readonly (Value | undefined)[] {
  const [positional = "", either = positional] = parameters.split("|").map((part) => part.trim());
  const onlyPositional = parameters.includes("|") ? words(positional) : [];
  const all = parameters.includes("|") ? [...onlyPositional, ...words(either)] : words(parameters);
  if (args.length > all.length)
    throw new TemplateError(`${name}() takes at most ${all.length} arguments (${args.length} given)`);
  const names = all.map((each) => each.replace("?", ""));
  const values: (Value | undefined)[] = all.map((_, index) => args[index]);
  for (const [key, value] of named) {
    const index = names.indexOf(key);
    if (index < onlyPositional.length) throw new TemplateError(`${name}() got an unexpected keyword argument '${key}'`);
    if (index < args.length) throw new TemplateError(`${name}() got multiple values for argument '${key}'`);
    values[index] = value;
  }
  const missing = all.findIndex((each, index) => !each.endsWith("?") && values[index] === undefined);
  if (missing !== -1) throw new TemplateError(`${name}() missing 1 required argument: '${names[missing] ?? ""}'`);
  return values;
}

const words = (text: string): readonly string[] => text.split(" ").filter((word) => word !== "");

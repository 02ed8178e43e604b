// The names of options of modules that are loaded alone, without the checks of parameters.

import { RequestError } from "./errors.js";

/** Throws RequestError for an option that is not ``known``; ``of`` is the option whose fields these are. */
export function requireKnown(options: object, known: readonly string[], of = ""): void {
  const unknown = Object.keys(options).find((name) => !known.includes(name));
  if (unknown !== undefined)
    throw new RequestError(`'${of}${unknown}' is not supported; supported: ${known.join(", ")}`, {
      param: of + unknown,
    });
}

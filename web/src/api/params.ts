// Validates parameters and options from outside: each must be in a table and within its range. Unknown parameters are
// errors and are never ignored.

import { RequestError } from "../errors.js";
import type { Fault, FaultOf, TypeName } from "../shared/declared.js";
import { check, isObject, shown, typeOf } from "../shared/declared.js";

export { check, isA, isObject, shown } from "../shared/declared.js";

/** A type by its name, or the fault of a value. */
export type Check = TypeName | FaultOf;

export type Checks = Readonly<Record<string, Check>>;

/** Parameters without those that are undefined or null. */
export type Given<T> = { readonly [K in keyof T]?: Exclude<T[K], null | undefined> | undefined };

/** Whether a value is null, empty, or an object of only such values, as clients send it back from an answer. */
export function isEmpty(value: unknown): boolean {
  return (value ?? "") === "" || (typeof value === "object" && Object.values(Object(value) as object).every(isEmpty));
}

export const signal = check("an AbortSignal", (value) => value instanceof AbortSignal);

export function refusal({ path, value, expected }: Fault, param: string): RequestError {
  return new RequestError(`${path} is ${shown(value)}, it must be ${expected}`, { param });
}

/** Throws RequestError for an unknown parameter, and for one that is out of its range. */
export function readParams<T extends object>(params: T, checks: Checks): Given<T> {
  if (!isObject(params)) throw new RequestError(`The parameters are ${shown(params)}, they must be an object`);
  const present = Object.entries(params).filter(([, value]) => value !== undefined && value !== null);
  for (const [name, value] of present) {
    const declared = Object.hasOwn(checks, name) ? checks[name] : undefined;
    if (declared === undefined)
      throw new RequestError(`'${name}' is not supported; supported: ${Object.keys(checks).join(", ")}`, {
        param: name,
      });
    const fault = typeof declared === "string" ? typeOf(declared).fault(value, name) : declared(value, name);
    if (fault !== null) throw refusal(fault, name);
  }
  const given = Object.fromEntries(present);
  if (given.stream_options !== undefined && given.stream !== true)
    throw new RequestError("stream_options applies to streamed answers only; set stream to true", {
      param: "stream_options",
    });
  return given as Given<T>;
}

/** Throws RequestError for an id, which an engine would ignore. */
export function refuseId(options: object): void {
  if ((options as { readonly id?: unknown }).id !== undefined)
    throw new RequestError(
      "This engine keeps no answers; request one with an id of journalled(engine), of journal.js",
      {
        param: "id",
      },
    );
}

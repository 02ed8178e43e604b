// Whether a complete answer has the requested format, as far as that can be checked without a validator: JSON must
// parse.

import { isObject } from "../../shared/declared.js";
import type { PlainParams } from "../sides/sides.js";

/** Null if no format was requested that could fail. */
export function fitsFormat({ response_format: format }: PlainParams): ((text: string) => boolean) | null {
  switch (format?.type) {
    case "json_object":
      return (text) => isObject(parsed(text));
    case "json_schema":
      return (text) => parsed(text) !== undefined;
    case "regex":
    case "grammar":
    case "text":
    case undefined:
      return null;
  }
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

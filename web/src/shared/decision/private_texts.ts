// Which values of a request are searched for private patterns: the texts that a person or a program wrote.
//
// server_fallback/router/decision/private_texts.py does the same and defines the descriptions;
// tests/conformance/private_texts.json requires the same texts of both.

import { PRIVATE_TEXTS } from "./private_texts_schema.js";

type Leaf = "text" | "prompt" | "url" | "json" | "json_text" | "none";
/** Of a value, of the keys of an object, or of values of several kinds. */
export type Description = Leaf | Keys | readonly Description[];
type Keys = { readonly [key in string]: Description };

/** A URL that only claims to be base64 is searched as text. */
const BEFORE_BYTES = /^data:[^,]*;base64,(?=[A-Za-z0-9+/]*={0,2}$)/;
/**
 * A string of JSON, without its quotes, or a number. A string that does not end ends with the text, so that the time is
 * linear.
 */
const JSON_VALUE = /"([^"\\]*(?:\\[^][^"\\]*)*)(?:"|\\?$)|(-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)/g;

/** ``meets``: in the prompt it meets the texts beside it. */
export interface PrivateText {
  readonly text: string;
  readonly meets: boolean;
}

/** The texts of a request that are searched. */
export function* privateTexts(
  value: unknown,
  description: Description = PRIVATE_TEXTS,
): Generator<PrivateText, void, undefined> {
  const kinds: readonly Description[] = Array.isArray(description) ? description : [description];
  const all = function* (inner: unknown) {
    for (const text of textsWithin(inner)) yield { text, meets: false };
  };
  if (typeof value === "string") {
    const kind = ["prompt", "text", "url", "json_text", "json"].find((each) => kinds.includes(each as Leaf));
    if (kind !== undefined)
      yield { text: kind === "url" ? (BEFORE_BYTES.exec(value)?.[0] ?? value) : value, meets: kind === "prompt" };
    if (kinds.includes("json_text")) for (const text of textsWithinText(value)) yield { text, meets: false };
  } else if (kinds.includes("json")) yield* all(value);
  else if (Array.isArray(value)) for (const item of value) yield* privateTexts(item, description);
  else if (typeof value === "object" && value !== null) {
    const entries = Object.entries(value).filter(([, inner]) => inner !== undefined && inner !== null);
    for (const keys of kinds) {
      if (typeof keys !== "object") continue;
      const { "*": others, ...known } = keys as Keys;
      for (const [key, inner] of Object.entries(known)) {
        const given = entries.find(([name]) => name === key);
        if (given !== undefined) yield* privateTexts(given[1], inner);
      }
      if (others !== undefined) yield* all(Object.fromEntries(entries.filter(([key]) => !Object.hasOwn(known, key))));
    }
  }
}

/** All texts, keys and numbers of a JSON value of any depth. */
function* textsWithin(root: unknown): Generator<string, void, undefined> {
  const pending = [root];
  while (pending.length > 0) {
    const value = pending.pop();
    if (typeof value === "string") yield value;
    else if (typeof value === "number") yield* numberTexts(value);
    else if (Array.isArray(value)) for (const part of value) pending.push(part);
    else if (typeof value === "object" && value !== null) {
      for (const [key, part] of Object.entries(value)) if (part !== undefined) pending.push(key, part);
    }
  }
}

/** The strings and numbers of JSON in a text, without their escapes; of a text that is not JSON, what looks so. */
function* textsWithinText(json: string): Generator<string, void, undefined> {
  for (const [, string, number = ""] of json.matchAll(JSON_VALUE)) {
    if (string !== undefined) yield unescaped(string);
    else {
      yield number;
      yield* numberTexts(Number(number));
    }
  }
}

/** A string of JSON without its escapes, or as it is if they are not JSON's. */
function unescaped(string: string): string {
  if (!string.includes("\\")) return string;
  try {
    return String(JSON.parse(`"${string}"`));
  } catch {
    return string;
  }
}

/** A number, and an integer by all of its digits. */
function* numberTexts(value: number): Generator<string, void, undefined> {
  yield String(value);
  if (Number.isInteger(value) && Math.abs(value) > 2 ** 53) yield String(BigInt(value));
}

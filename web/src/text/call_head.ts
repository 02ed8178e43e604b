// Finds the start of a tool call in the text after its marker: the call's name, and where its arguments begin.

import type { ToolFormatEntry } from "../runtime/manifest.js";
import { JsonReader } from "./argument_readers.js";

/** ``length`` characters precede the arguments. With ``arguments``, they include the whole call. */
export interface Head {
  readonly length: number;
  readonly name: string;
  readonly arguments?: object | undefined;
}

const STRING = '"(?:[^"\\\\]|\\\\.)*"';
// A call that is a JSON object, up to the start of its arguments.
const OBJECT = new RegExp(
  `^\\s*\\{\\s*(?:"type"\\s*:\\s*"function"\\s*,\\s*)?` +
    `"name"\\s*:\\s*(${STRING})\\s*,\\s*"(?:arguments|parameters)"\\s*:\\s*(?=\\{)`,
  "s",
);
const FIRST_KEY = new RegExp(`^\\s*\\{\\s*(${STRING})`, "s");
const KEYS: readonly unknown[] = ["name", "type", "id", "arguments", "parameters"];
const LONGEST_NAME = 64;

/**
 * The head at the start of ``text``; "wait" if more text is needed, null if no continuation of ``text`` begins with a
 * head.
 */
export function findHead(format: ToolFormatEntry, text: string): Head | "wait" | null {
  return format.before_name.endsWith('"') ? objectHead(text) : namedHead(format, text);
}

function objectHead(text: string): Head | "wait" | null {
  const match = OBJECT.exec(text);
  const name = match === null ? null : parsed(match[1] ?? "");
  if (match !== null && typeof name === "string") return { length: match[0].length, name };
  if (!/^\s*(\{|$)/.test(text)) return null;
  const end = new JsonReader().end(text);
  if (end >= 0) return callOf(parsed(text.slice(0, end)), end);
  const key = FIRST_KEY.exec(text)?.[1];
  return key !== undefined && !KEYS.includes(parsed(key)) ? null : "wait";
}

function namedHead(format: ToolFormatEntry, text: string): Head | "wait" | null {
  const { marker, gap } = format;
  const before = format.before_name.slice(marker.length).trimStart();
  const after = format.before_arguments.trimEnd();
  let rest = text.trimStart();
  if (!rest.startsWith(before)) return before.startsWith(rest) ? "wait" : null;
  rest = rest.slice(before.length);
  const name = /^[A-Za-z0-9_.-]*/.exec(rest)?.[0] ?? "";
  if (name.length > LONGEST_NAME) return null;
  rest = rest.slice(name.length);
  if (rest === "") return "wait";
  if (name === "") return null;
  if (gap !== "" && rest.startsWith(gap)) {
    const at = rest.indexOf(after);
    if (at < 0) return "wait";
    rest = rest.slice(at);
  }
  if (!rest.startsWith(after)) return after.startsWith(rest) || gap.startsWith(rest) ? "wait" : null;
  rest = rest.slice(after.length);
  if (format.arguments !== "xml") {
    rest = rest.trimStart();
    if (rest === "") return "wait";
    if (!rest.startsWith("{")) return null;
  }
  return { length: text.length - rest.length, name };
}

function callOf(value: unknown, length: number): Head | null {
  if (typeof value !== "object" || value === null) return null;
  const call = value as { readonly name?: unknown; readonly arguments?: unknown; readonly parameters?: unknown };
  const given = call.arguments ?? call.parameters;
  if (typeof call.name !== "string" || typeof given !== "object" || given === null || Array.isArray(given)) return null;
  return { length, name: call.name, arguments: given };
}

function parsed(json: string): unknown {
  try {
    return JSON.parse(json);
  } catch {
    return undefined;
  }
}

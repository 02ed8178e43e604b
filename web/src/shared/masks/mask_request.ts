// The request that far receives in place of one with private texts: its messages with placeholders for what the policy's
// patterns and the entities of a model find, and for every other occurrence of the same texts. The texts of messages are
// masked, and in the arguments of their calls and in results in JSON the strings and numbers; names, tools and formats
// are not. Whoever masks a request searches the masked one again, and if anything private is left, the request stays on
// the device.

import type { MaskedText } from "../../api/replies.js";
import { Visits } from "../decision/automaton.js";
import { compilePattern } from "../decision/pattern.js";
import type { MaskRules } from "../decision/policy_schema.js";
import type { CompiledMask, Known, Reading } from "./find_spans.js";
import { findKnown, findSpans, seen, widened } from "./find_spans.js";
import type { Mask, Span } from "./placeholders.js";
import { MaskTable, joined, placeholders } from "./placeholders.js";

/** What a model has found in a text of the request. Indices are UTF-16 units. */
export interface Entity {
  readonly label: string;
  readonly start: number;
  readonly end: number;
}

export interface MaskedMessages {
  readonly messages: readonly unknown[];
  readonly masks: readonly Mask[];
  /** The texts that differ from those of the request. */
  readonly texts: readonly MaskedText[];
}

type Value = Readonly<Record<string, unknown>>;
/** Changes a text; ``path`` is its place. ``isNumber``: it is a number of JSON, and becomes a string if it changes. */
type Change = (text: string, path: string, isNumber?: boolean) => string;

/** A string of JSON, with its quotation marks, or a number. */
const JSON_VALUE = /"(?:[^"\\]|\\[^])*"|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?/gi;
/** A number that may also be written in another way. */
const FLOAT = /^-?\d+(?:\.\d+)?(?:e[+-]?\d+)?$/i;

/** The texts of messages that are masked, each once, in which a model may find entities. */
export function maskableTexts(messages: readonly unknown[]): readonly string[] {
  return [...new Set(maskables(messages).map(({ text }) => text))];
}

/** A text or a number of the request, the spans of it that are private, and how it is read. */
interface Maskable {
  readonly text: string;
  readonly isNumber: boolean;
  spans: readonly Span[];
  readonly reading: () => Reading;
}

/** Each once, in their order. */
function maskables(messages: readonly unknown[]): readonly Maskable[] {
  const found = new Map<string, Maskable>();
  changed(messages, (text, _, isNumber = false) => {
    let read: Reading | undefined;
    const reading = (): Reading => (read ??= seen(text, true));
    const key = keyOf(text, isNumber);
    if (text.trim() !== "" && !found.has(key)) found.set(key, { text, isNumber, spans: [], reading });
    return text;
  });
  return [...found.values()];
}

const keyOf = (text: string, isNumber: boolean): string => `${isNumber} ${text}`;

/**
 * Masks messages. ``entities`` are those of each text of ``maskableTexts``. ``masks`` are made before, of the same
 * conversation. Null if nothing is found.
 */
export function maskMessages(
  rules: Pick<MaskRules, "patterns" | "entities">,
  ignoreCase: boolean,
  messages: readonly unknown[],
  entities: readonly (readonly [text: string, entities: readonly Entity[]])[],
  masks: readonly Mask[] = [],
): MaskedMessages | null {
  const compiled = rules.patterns.map(({ kind, pattern }): CompiledMask => {
    return { kind, pattern: compilePattern(pattern, ignoreCase) };
  });
  const visits = new Visits();
  const kinds = new Map(rules.entities.map(({ label, kind }) => [label, kind]));
  const ofEntities = new Map(entities);
  const known = new Map<string, Known>();
  const table = new MaskTable(masks);
  const all = maskables(messages);
  const replaced = ({ text, isNumber, spans }: Maskable): string =>
    isNumber ? table.maskNumber(text, spans) : table.mask(text, spans);
  // Each text is masked as if it were the last, with those before it in which it shows more to be private. So a later
  // turn changes no placeholder of an earlier one.
  for (const [index, maskable] of all.entries()) {
    const { text } = maskable;
    const named = (ofEntities.get(text) ?? []).flatMap(({ label, start, end }): Span[] => {
      const kind = kinds.get(label);
      return kind === undefined ? [] : [widened(text, { start, end, kind })];
    });
    const found = joined([...findSpans(text, compiled, visits), ...inOtherDigits(text, compiled, visits), ...named]);
    const shown: Known[] = [];
    for (const { start, end, kind } of found) {
      const part = text.slice(start, end);
      if (!known.has(part)) {
        known.set(part, { text: part, kind });
        shown.push({ text: part, kind });
      }
    }
    maskable.spans = [...found, ...findKnown(maskable.reading, [...known.values()])];
    for (const earlier of shown.length > 0 ? all.slice(0, index) : []) {
      const more = findKnown(earlier.reading, shown);
      if (more.length > 0) earlier.spans = [...earlier.spans, ...more];
      if (more.length > 0) replaced(earlier);
    }
    replaced(maskable);
  }
  if (known.size === 0 && masks.length === 0) return null;
  const byKey = new Map(all.map((maskable) => [keyOf(maskable.text, maskable.isNumber), maskable]));
  const changes: MaskedText[] = [];
  const masked = changed(messages, (text, path, isNumber = false) => {
    const maskable = byKey.get(keyOf(text, isNumber));
    const now = maskable === undefined ? text : replaced(maskable);
    if (now !== text) changes.push({ path, text: now });
    return now;
  });
  return { messages: masked, masks: table.masks, texts: changes };
}

/** The whole of a number that matches as JavaScript writes it. */
function inOtherDigits(text: string, masks: readonly CompiledMask[], visits: Visits): readonly Span[] {
  const written = FLOAT.test(text) ? String(Number(text)) : text;
  const [found] = written === text ? [] : findSpans(written, masks, visits);
  return found === undefined ? [] : [{ start: 0, end: text.length, kind: found.kind }];
}

/**
 * Whether one of these texts, each given by its parts, still has a text that is masked elsewhere: in a place that is not
 * masked, or split over parts.
 */
export function hasMasked(masks: readonly Mask[], texts: readonly (readonly string[])[]): boolean {
  // What only looks like a placeholder is not private. A policy may have its kind, too.
  const known = masks.flatMap(({ text }): Known[] =>
    text.replace(placeholders(), "") === "" ? [] : [{ text, kind: "" }],
  );
  return texts.some((parts) =>
    (parts.length < 2 ? [""] : ["", " ", "\n"]).some(
      (separator) => known.length > 0 && findKnown(() => seen(parts.join(separator), true), known).length > 0,
    ),
  );
}

/**
 * Masks a text that near wrote, with which far continues an answer. ``made`` are the masks of its request. Returns all
 * masks.
 */
export function maskText(
  rules: Pick<MaskRules, "patterns" | "entities">,
  ignoreCase: boolean,
  text: string,
  entities: readonly Entity[],
  made: readonly Mask[],
): { readonly text: string; readonly masks: readonly Mask[] } {
  const content = [{ role: "assistant", content: text }];
  const masked = maskMessages(rules, ignoreCase, content, [[text, entities]], made);
  const [message] = (masked?.messages ?? content) as readonly { readonly content: string }[];
  return { text: message?.content ?? text, masks: masked?.masks ?? made };
}

/** The messages with their texts changed. */
function changed(messages: readonly unknown[], change: Change): readonly unknown[] {
  return messages.map((message, index) =>
    isObject(message) ? changedMessage(message, `messages[${index}]`, change) : message,
  );
}

function changedMessage(message: Value, path: string, change: Change): Value {
  const now: Record<string, unknown> = { ...message };
  const isResult = message.role === "tool" || message.role === "function";
  const text = (key: string): void => {
    const value = now[key];
    if (typeof value !== "string") return;
    // Of a text that has JSON in it, the text is masked.
    const isJsonResult = isResult && key === "content" && /^\s*[[{]/.test(value);
    now[key] = isJsonResult ? changedJson(value, `${path}.${key}`, change) : change(value, `${path}.${key}`);
  };
  // In the order in which chat templates write them.
  for (const key of ["reasoning_content", "reasoning", "content", "refusal"]) {
    text(key);
    const parts = now[key];
    if (key === "content" && Array.isArray(parts))
      now.content = parts.map((part: unknown, at) =>
        isObject(part) ? changedPart(part, `${path}.content[${at}]`, change) : part,
      );
  }
  if (Array.isArray(now.tool_calls))
    now.tool_calls = now.tool_calls.map((call: unknown, at) =>
      isObject(call)
        ? { ...call, function: changedCall(call.function, `${path}.tool_calls[${at}].function`, change) }
        : call,
    );
  if (isObject(now.function_call)) now.function_call = changedCall(now.function_call, `${path}.function_call`, change);
  return now;
}

function changedPart(part: Value, path: string, change: Change): Value {
  const texts = ["text", "refusal"].filter((key) => typeof part[key] === "string");
  return { ...part, ...Object.fromEntries(texts.map((key) => [key, change(String(part[key]), `${path}.${key}`)])) };
}

function changedCall(call: unknown, path: string, change: Change): unknown {
  if (!isObject(call) || typeof call.arguments !== "string") return call;
  return { ...call, arguments: changedJson(call.arguments, `${path}.arguments`, change) };
}

/**
 * JSON with its strings and numbers changed. A text that is not JSON, as of a call that was cut off, is changed as a
 * whole.
 */
function changedJson(json: string, path: string, change: Change): string {
  if (!isJson(json)) return change(json, path);
  return json.replace(JSON_VALUE, (value) => {
    const isNumber = !value.startsWith('"');
    const text = isNumber ? value : String(JSON.parse(value));
    const now = change(text, path, isNumber);
    return now === text ? value : JSON.stringify(now);
  });
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

function isObject(value: unknown): value is Value {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

// What a model receives of a tool's result: text of a bounded number of bytes, which says what it leaves out.

import { isObject } from "../grammar/schema_merge.js";

/** The text of a result, and whether the tool reported an error. */
export interface ResultText {
  readonly text: string;
  readonly failed: boolean;
}

/** A value as text: a text as it is, anything else as JSON. */
export function valueText(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value ?? null);
}

/**
 * The text of a tool's result in MCP's form. Parts that are no text are named with their size. The structured content
 * counts if there is no text, because servers repeat it as text.
 */
export function contentText(result: unknown): ResultText {
  const { content, structuredContent, isError } = Object(result) as Readonly<Record<string, unknown>>;
  const parts = (Array.isArray(content) ? (content as unknown[]) : []).map(partText).filter((part) => part !== "");
  const structured = structuredContent === undefined || structuredContent === null ? "" : valueText(structuredContent);
  const text = parts.length > 0 ? parts.join("\n") : structured;
  return { text: text === "" ? "(no result)" : text, failed: isError === true };
}

/**
 * The text of what a page's tool returned, as WebMCP passes it on: JSON, or null if the call left the page. Some pages
 * return MCP's form.
 */
export function pageText(json: string | null): ResultText {
  if (json === null) return { text: "(the page was left)", failed: false };
  let value: unknown;
  try {
    value = JSON.parse(json);
  } catch {
    return { text: json, failed: false };
  }
  if (isObject(value) && Array.isArray(value.content)) return contentText(value);
  return { text: valueText(value ?? "(no result)"), failed: false };
}

/** At most ``bytes`` bytes of UTF-8, in whole characters. The last line of a longer text says what was cut. */
export function boundedText(text: string, bytes: number): string {
  const all = utf8Bytes(text);
  if (all <= bytes) return text;
  const note = (kept: number): string => `\n[cut: the first ${kept} of ${all} bytes]`;
  // No smaller number has more digits.
  const room = Math.max(0, bytes - note(all).length);
  let [kept, end] = [0, 0];
  for (const character of text) {
    const size = utf8Bytes(character);
    if (kept + size > room) break;
    kept += size;
    end += character.length;
  }
  return text.slice(0, end) + note(kept);
}

/** The size of a text in UTF-8; a surrogate alone counts as the character that replaces it. */
export function utf8Bytes(text: string): number {
  let bytes = 0;
  for (const character of text) {
    const point = character.codePointAt(0) ?? 0;
    bytes += point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
  }
  return bytes;
}

function partText(part: unknown): string {
  const { type, text, data, mimeType, uri, name, resource } = Object(part) as Readonly<Record<string, unknown>>;
  if (type === "text" && typeof text === "string") return text;
  if (type === "resource") {
    const { uri: at, text: inner, blob, mimeType: kind } = Object(resource) as Readonly<Record<string, unknown>>;
    if (typeof inner === "string") return inner;
    return notShown(`the resource ${String(at)}`, kind, blob);
  }
  if (type === "resource_link") return `[${typeof name === "string" ? name : "a resource"}: ${String(uri)}]`;
  return notShown(typeof type === "string" ? type : "a part of an unknown type", mimeType, data);
}

/** ``data`` is base64. */
function notShown(what: string, mime: unknown, data: unknown): string {
  const size = typeof data === "string" ? `, ${Math.floor((data.replace(/=+$/, "").length * 3) / 4)} bytes` : "";
  return `[${what}${typeof mime === "string" ? `, ${mime}` : ""}${size}: not shown]`;
}

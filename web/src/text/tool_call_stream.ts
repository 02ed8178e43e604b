// Parses tool calls in the streamed pieces of an answer, in the order and form in which OpenAI's API streams them.
// The result does not depend on how the text is cut into pieces. Text that only looks like a call is emitted as text.

import type { ToolFormat } from "./tools.js";

export type ToolCallEvent =
  | { readonly type: "text"; readonly text: string }
  | { readonly type: "tool_call"; readonly index: number; readonly id: string; readonly name: string }
  | { readonly type: "arguments"; readonly index: number; readonly text: string };

const OPEN = "<tool_call>";
const CLOSE = "</tool_call>";
const PYTHON_TAG = "<|python_tag|>";
const STRING = '"(?:[^"\\\\]|\\\\.)*"';
// A call up to its arguments.
const HEAD = new RegExp(
  `^\\s*\\{\\s*(?:"type"\\s*:\\s*"function"\\s*,\\s*)?` +
    `"name"\\s*:\\s*(${STRING})\\s*,\\s*"(?:arguments|parameters)"\\s*:\\s*(?=\\{)`,
);
const FIRST_KEY = new RegExp(`^\\s*\\{\\s*(${STRING})`);
const KEYS = ["name", "type", "arguments", "parameters"];

/**
 * text: outside of calls. head: in a call whose name is not known yet. arguments: in its arguments. tail: after its
 * arguments.
 */
type Mode = "text" | "head" | "arguments" | "tail";

export class ToolCallStream {
  #mode: Mode = "text";
  /** Text that is not classified yet. */
  #held = "";
  /** The beginning of the current call, in case it is not a call. */
  #opened = "";
  #calls = 0;
  #depth = 0;
  #inString = false;
  #escaped = false;
  /** Whether text arrived that is not a call, after which llama3 has no calls. */
  #said = false;

  constructor(
    private readonly format: ToolFormat,
    private readonly newId: () => string = randomId,
  ) {}

  get called(): boolean {
    return this.#calls > 0;
  }

  /** Whether the answer so far ends with a call whose arguments are complete. */
  get whole(): boolean {
    return this.called && (this.#mode === "text" || this.#mode === "tail") && !this.#said;
  }

  feed(text: string): ToolCallEvent[] {
    this.#held += text;
    return joined(this.advance(false));
  }

  /** The text that is still held back at the end of the answer. The arguments of a truncated call are not completed. */
  finish(): ToolCallEvent[] {
    return joined(this.advance(true));
  }

  private advance(ended: boolean): ToolCallEvent[] {
    const events: ToolCallEvent[] = [];
    for (;;) {
      const before = `${this.#mode} ${this.#held.length}`;
      events.push(...this.step(ended));
      const open = ended && this.#mode === "head";
      if ((this.#held === "" && !open) || `${this.#mode} ${this.#held.length}` === before) return events;
    }
  }

  private step(ended: boolean): ToolCallEvent[] {
    switch (this.#mode) {
      case "text":
        return this.format === "hermes" ? this.hermesText(ended) : this.llamaText(ended);
      case "head":
        return this.head(ended);
      case "arguments":
        return this.argumentsText();
      case "tail":
        return this.tail(ended);
      default:
        return this.#mode satisfies never;
    }
  }

  private hermesText(ended: boolean): ToolCallEvent[] {
    const start = this.#held.indexOf(OPEN);
    if (start >= 0) {
      const text = this.take(start);
      this.#opened = this.take(OPEN.length);
      this.#mode = "head";
      return text.trim() === "" && !this.#said ? [] : this.text(text);
    }
    // Space before a call is not text, and the start of a tag may become a call.
    const kept = ended ? 0 : !this.#said && this.#held.trim() === "" ? this.#held.length : overlap(this.#held, OPEN);
    const rest = this.#held.slice(0, this.#held.length - kept);
    if (!this.#said && rest.trim() === "" && !ended) return [];
    return this.text(this.take(rest.length));
  }

  private llamaText(ended: boolean): ToolCallEvent[] {
    if (!this.#said) {
      const lead = /^[\s;]*/.exec(this.#held)?.[0] ?? "";
      const rest = this.#held.slice(lead.length);
      if (rest.startsWith(PYTHON_TAG) || rest.startsWith("{")) {
        this.#opened = this.take(lead.length + (rest.startsWith("{") ? 0 : PYTHON_TAG.length));
        this.#mode = "head";
        return [];
      }
      if (!ended && PYTHON_TAG.startsWith(rest)) return [];
      if (rest === "" && this.#calls > 0) {
        this.take(lead.length);
        return [];
      }
    }
    return this.text(this.take(this.#held.length));
  }

  private head(ended: boolean): ToolCallEvent[] {
    const match = HEAD.exec(this.#held);
    const name = match === null ? null : parsed(match[1] ?? "");
    if (match !== null && typeof name === "string") {
      this.take(match[0].length);
      return this.started(name);
    }
    // With keys in another order, the complete call is emitted at once.
    const end = this.format === "hermes" ? this.#held.indexOf(CLOSE) : objectEnd(this.#held);
    if (end >= 0) {
      const call = callOf(parsed(this.#held.slice(0, end)));
      if (call === null) return this.isText();
      this.take(end);
      const events = this.started(call.name);
      this.#mode = "tail";
      // The end of the object was already consumed.
      this.#depth = -1;
      return [...events, { type: "arguments", index: this.#calls - 1, text: JSON.stringify(call.arguments) }];
    }
    const key = FIRST_KEY.exec(this.#held)?.[1];
    const hopeless = !/^\s*(\{|$)/.test(this.#held) || (key !== undefined && !KEYS.includes(String(parsed(key))));
    return ended || hopeless ? this.isText() : [];
  }

  private started(name: string): ToolCallEvent[] {
    this.#mode = "arguments";
    [this.#depth, this.#inString, this.#escaped] = [0, false, false];
    return [{ type: "tool_call", index: this.#calls++, id: this.newId(), name }];
  }

  private argumentsText(): ToolCallEvent[] {
    let length = 0;
    while (length < this.#held.length && this.#mode === "arguments") {
      const character = this.#held[length++] ?? "";
      if (this.#escaped) this.#escaped = false;
      else if (this.#inString) {
        if (character === "\\") this.#escaped = true;
        else if (character === '"') this.#inString = false;
      } else if (character === '"') this.#inString = true;
      else if (character === "{" || character === "[") this.#depth++;
      else if (character === "}" || character === "]") {
        if (--this.#depth === 0) this.#mode = "tail";
      }
    }
    return [{ type: "arguments", index: this.#calls - 1, text: this.take(length) }];
  }

  /**
   * The end of a call: its object's closing brace, and the tag. Other text there is dropped, because the call was
   * already emitted.
   */
  private tail(ended: boolean): ToolCallEvent[] {
    if (this.format === "hermes") {
      const end = this.#held.indexOf(CLOSE);
      this.take(
        end >= 0 ? end + CLOSE.length : ended ? this.#held.length : this.#held.length - overlap(this.#held, CLOSE),
      );
      if (end >= 0) this.ended();
      return [];
    }
    const brace = /^\s*\}/.exec(this.#held)?.[0];
    if (brace !== undefined || this.#depth < 0) {
      this.take(this.#depth < 0 ? 0 : (brace ?? "").length);
      this.ended();
    } else if (this.#held.trim() !== "") this.ended();
    return [];
  }

  private ended(): void {
    this.#mode = "text";
    this.#said = false;
  }

  /** The held text is not a call. */
  private isText(): ToolCallEvent[] {
    const text = this.#opened;
    this.#opened = "";
    this.#mode = "text";
    // The tag itself is consumed, so that the text after it is examined again.
    const rest = this.format === "llama3" ? this.take(this.#held.length) : "";
    return this.text(text + rest);
  }

  private text(text: string): ToolCallEvent[] {
    if (text === "") return [];
    this.#said = true;
    return [{ type: "text", text }];
  }

  private take(length: number): string {
    const taken = this.#held.slice(0, length);
    this.#held = this.#held.slice(length);
    return taken;
  }
}

/** Merges adjacent events of the same kind. */
function joined(events: readonly ToolCallEvent[]): ToolCallEvent[] {
  const result: ToolCallEvent[] = [];
  for (const event of events) {
    const last = result.at(-1);
    if (event.type === "text" && last?.type === "text")
      result[result.length - 1] = { type: "text", text: last.text + event.text };
    else if (event.type !== "arguments" || event.text !== "") result.push(event);
  }
  return result;
}

/** The length of the longest suffix of ``text`` that is a prefix of ``tag``. */
function overlap(text: string, tag: string): number {
  for (let length = Math.min(text.length, tag.length - 1); length > 0; length--)
    if (tag.startsWith(text.slice(-length))) return length;
  return 0;
}

/** The end of the object with which ``text`` begins; -1 if it has not ended. */
function objectEnd(text: string): number {
  let [depth, inString, escaped] = [0, false, false];
  for (let at = 0; at < text.length; at++) {
    const character = text[at] ?? "";
    if (escaped) escaped = false;
    else if (inString) {
      if (character === "\\") escaped = true;
      else if (character === '"') inString = false;
    } else if (character === '"') inString = true;
    else if (character === "{" || character === "[") depth++;
    else if ((character === "}" || character === "]") && --depth === 0) return at + 1;
  }
  return -1;
}

function callOf(value: unknown): { readonly name: string; readonly arguments: unknown } | null {
  if (typeof value !== "object" || value === null) return null;
  const call = value as { readonly name?: unknown; readonly arguments?: unknown; readonly parameters?: unknown };
  const given = call.arguments ?? call.parameters;
  if (typeof call.name !== "string" || typeof given !== "object" || given === null || Array.isArray(given)) return null;
  return { name: call.name, arguments: given };
}

function parsed(json: string): unknown {
  try {
    return JSON.parse(json);
  } catch {
    return undefined;
  }
}

function randomId(): string {
  return `call_${crypto.randomUUID().replaceAll("-", "")}`;
}

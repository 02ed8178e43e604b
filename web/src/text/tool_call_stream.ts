// Parses tool calls in the streamed pieces of an answer, in the order and form in which OpenAI's API streams them.
// The result does not depend on how the text is cut into pieces. Text that only looks like a call is emitted as text.

import type { ToolFormatEntry } from "../runtime/manifest.js";
import type { ArgumentReader } from "./argument_readers.js";
import { GemmaReader, JsonReader, XmlReader, overlap } from "./argument_readers.js";
import { findHead } from "./call_head.js";
import type { Tool } from "./tools.js";
import { textParameters } from "./tools.js";

export type ToolCallEvent =
  | { readonly type: "text"; readonly text: string }
  | { readonly type: "tool_call"; readonly index: number; readonly id: string; readonly name: string }
  | { readonly type: "arguments"; readonly index: number; readonly text: string };

/**
 * text: outside of calls. head: in a call whose name is not known yet. arguments: in its arguments. object: in the JSON
 * object of a call of a list, after its arguments. between: after a call of a list. tail: before the text that ends a
 * call or a list.
 */
type Mode = "text" | "head" | "arguments" | "object" | "between" | "tail";

export class ToolCallStream {
  #mode: Mode = "text";
  /** Text that is not classified yet. */
  #held = "";
  /** The beginning of the current call, in case it is not a call. */
  #opened = "";
  #calls = 0;
  #reader: ArgumentReader = new JsonReader();
  #inList = false;
  /** Whether text arrived that is not a call, after which a format without a marker has no calls. */
  #said = false;

  /** ``tools``: a format that writes strings without quotes reads from them which parameters are strings. */
  constructor(
    private readonly format: ToolFormatEntry,
    private readonly tools: readonly Tool[] = [],
    private readonly newId: () => string = randomId,
  ) {}

  get called(): boolean {
    return this.#calls > 0;
  }

  /** Whether the answer so far ends with a call whose arguments are complete. */
  get complete(): boolean {
    return this.called && this.#mode !== "head" && this.#mode !== "arguments" && !this.#said;
  }

  /** The end of the text so far, of which is not known whether it is a call. */
  get undecided(): string {
    return this.#opened + this.#held;
  }

  feed(text: string): ToolCallEvent[] {
    this.#held += text;
    return joined(this.#advance(false));
  }

  /** The text that is still held back at the end of the answer. The arguments of a truncated call are not completed. */
  finish(): ToolCallEvent[] {
    return joined(this.#advance(true));
  }

  #advance(ended: boolean): ToolCallEvent[] {
    const events: ToolCallEvent[] = [];
    for (;;) {
      const before = `${this.#mode} ${this.#held.length}`;
      events.push(...this.#step(ended));
      const open = ended && this.#mode === "head";
      if ((this.#held === "" && !open) || `${this.#mode} ${this.#held.length}` === before) return events;
    }
  }

  #step(ended: boolean): readonly ToolCallEvent[] {
    switch (this.#mode) {
      case "text":
        return this.format.marker === "" ? this.#wholeAnswer(ended) : this.#markedText(ended);
      case "head":
        return this.#head(ended);
      case "arguments":
        return this.#argumentsText();
      case "object":
        // Other keys of a call, such as its id, are dropped.
        if (this.#readHeld()[1]) this.#mode = "between";
        return [];
      case "between":
        return this.#between();
      case "tail":
        return this.#tail(ended);
      default:
        return this.#mode satisfies never;
    }
  }

  #markedText(ended: boolean): readonly ToolCallEvent[] {
    const { marker } = this.format;
    const start = this.#held.indexOf(marker);
    if (start >= 0) {
      const text = this.#take(start);
      this.#opened = this.#take(marker.length);
      this.#mode = "head";
      this.#inList = false;
      return text.trim() === "" && !this.#said ? [] : this.#text(text);
    }
    // Space before a call is not text, and the start of a marker may become a call.
    const blank = !this.#said && this.#held.trim() === "";
    const kept = ended ? 0 : blank ? this.#held.length : overlap(this.#held, marker);
    const rest = this.#held.slice(0, this.#held.length - kept);
    if (!this.#said && rest.trim() === "" && !ended) return [];
    return this.#text(this.#take(rest.length));
  }

  #wholeAnswer(ended: boolean): readonly ToolCallEvent[] {
    const { lead } = this.format;
    if (!this.#said) {
      const skipped = /^[\s;]*/.exec(this.#held)?.[0] ?? "";
      const rest = this.#held.slice(skipped.length);
      if (rest.startsWith("{") || (lead !== "" && rest.startsWith(lead))) {
        this.#opened = this.#take(skipped.length + (rest.startsWith("{") ? 0 : lead.length));
        this.#mode = "head";
        return [];
      }
      if (!ended && lead.startsWith(rest)) return [];
      if (rest === "" && this.#calls > 0) {
        this.#take(skipped.length);
        return [];
      }
    }
    return this.#text(this.#take(this.#held.length));
  }

  #head(ended: boolean): readonly ToolCallEvent[] {
    const bracket = this.format.begin !== "" && !this.#inList ? /^\s*\[/.exec(this.#held)?.[0] : undefined;
    if (bracket !== undefined) {
      this.#inList = true;
      this.#opened += this.#take(bracket.length);
    }
    const head = findHead(this.format, this.#held);
    if (head === "wait" && !ended) return [];
    if (head === "wait" || head === null) return this.#isText();
    this.#take(head.length);
    this.#opened = "";
    this.#mode = "arguments";
    this.#reader = this.#newReader(head.name);
    const index = this.#calls++;
    const call: ToolCallEvent = { type: "tool_call", index, id: this.newId(), name: head.name };
    if (head.arguments === undefined) return [call];
    // The keys have another order: the complete call was read at once.
    this.#mode = this.#inList ? "between" : "tail";
    return [call, { type: "arguments", index, text: JSON.stringify(head.arguments) }];
  }

  #newReader(name: string): ArgumentReader {
    switch (this.format.arguments) {
      case "json":
        return new JsonReader();
      case "gemma":
        return new GemmaReader();
      case "xml":
        return new XmlReader(textParameters(this.tools, name), this.format.close);
    }
  }

  #argumentsText(): readonly ToolCallEvent[] {
    const [text, done] = this.#readHeld();
    if (done) {
      this.#mode = this.#inList ? "object" : "tail";
      this.#reader = new JsonReader(1);
    }
    return [{ type: "arguments", index: this.#calls - 1, text }];
  }

  #readHeld(): readonly [json: string, done: boolean] {
    const [length, json, done] = this.#reader.read(this.#held);
    this.#take(length);
    return [json, done];
  }

  #between(): readonly ToolCallEvent[] {
    this.#held = this.#held.trimStart();
    const next = this.#held[0];
    if (next === "," || next === "]") {
      this.#take(1);
      this.#mode = next === "," ? "head" : "tail";
    } else if (next !== undefined) this.#ended();
    return [];
  }

  /**
   * The end of a call: its object's closing brace, and the closing marker. Other text before a closing marker is
   * dropped, because the call was already emitted.
   */
  #tail(ended: boolean): readonly ToolCallEvent[] {
    const { close, marker } = this.format;
    if (close !== "") {
      const ends = [this.#held.indexOf(close), this.#held.indexOf(marker)].filter((at) => at >= 0);
      const unclear = ended ? 0 : Math.max(overlap(this.#held, close), overlap(this.#held, marker));
      this.#take(ends.length > 0 ? Math.min(...ends) : this.#held.length - unclear);
      if (ends.length > 0) {
        if (this.#held.startsWith(close)) this.#take(close.length);
        this.#ended();
      }
      return [];
    }
    const brace = /^\s*\}/.exec(this.#held)?.[0];
    if (brace !== undefined && !this.#inList && this.format.after_arguments !== "") this.#take(brace.length);
    if (brace !== undefined || this.#held.trim() !== "") this.#ended();
    return [];
  }

  #ended(): void {
    this.#mode = "text";
    this.#said = false;
    this.#inList = false;
  }

  /** The held text is not a call. */
  #isText(): readonly ToolCallEvent[] {
    const text = this.#opened;
    this.#opened = "";
    this.#mode = "text";
    // The marker itself is consumed, so that the text after it is examined again.
    const rest = this.format.marker === "" ? this.#take(this.#held.length) : "";
    return this.#text(text + rest);
  }

  #text(text: string): readonly ToolCallEvent[] {
    if (text === "") return [];
    this.#said = true;
    return [{ type: "text", text }];
  }

  #take(length: number): string {
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

function randomId(): string {
  return `call_${crypto.randomUUID().replaceAll("-", "")}`;
}

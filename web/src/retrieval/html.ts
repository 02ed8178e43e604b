// The readable text of an HTML document, with its blocks. It needs no DOM, so it also works in a worker, and it never
// runs or fetches anything that the document names.

import type { Block } from "./document.js";
import { references } from "./entities.js";
import { Outline } from "./outline.js";
import type { Tag } from "./tags.js";
import { nextTag } from "./tags.js";

// https://html.spec.whatwg.org/multipage/rendering.html#flow-content-3, and the rows and items that a browser shows
// below each other.
const BLOCKS = new Set(
  (
    "address article aside blockquote body br caption center dd details dialog dir div dl dt fieldset figcaption " +
    "figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr html legend li main menu nav ol optgroup option p pre " +
    "section select summary table tbody tfoot thead tr ul"
  ).split(" "),
);
const CELLS = new Set(["td", "th"]);
// Elements that browsers do not show as text.
const HIDDEN = new Set("script style head template noscript textarea title svg math iframe object".split(" "));
// Elements whose content is not markup.
const RAW = new Set(["script", "style", "textarea", "title", "iframe", "noscript"]);
// Only these may be closed by "/>".
const FOREIGN = new Set(["svg", "math"]);
const WITHOUT_CONTENT = new Set(["br", "hr"]);
const HEADING = /^h([1-6])$/;

export interface HtmlText {
  readonly text: string;
  readonly blocks: readonly Block[];
  readonly sourceOffset: (offset: number) => number;
}

/** The text that a reader of the document sees. White space is collapsed, except in ``pre``. */
export function readHtml(source: string): HtmlText {
  const reader = new Reader(source);
  let from = 0;
  for (let tag = nextTag(source, 0); tag !== null; tag = nextTag(source, from)) {
    reader.text(from, tag.start);
    from = tag.end;
    if (tag.name === "") continue;
    if (tag.closing) reader.close(tag.name);
    else {
      reader.open(tag);
      if (RAW.has(tag.name)) from = endOfRaw(source, tag);
    }
  }
  reader.text(from, source.length);
  return reader.end();
}

/** The offset of the closing tag of an element without markup. */
function endOfRaw(source: string, { name, end }: Tag): number {
  const closing = new RegExp(`</${name}(?=[\\s/>])`, "gi");
  closing.lastIndex = end;
  return closing.exec(source)?.index ?? source.length;
}

/** A part of the text, as long here as in the source. */
interface Run {
  readonly offset: number;
  readonly source: number;
}

class Reader {
  readonly #outline = new Outline();
  readonly #runs: Run[] = [];
  readonly #finished: string[] = [];
  /** The open block, and its offset. */
  #block = "";
  #start = 0;
  /** Whether another space would not be shown: at the start of a block, and after a space. */
  #endsWithSpace = true;
  #hidden: { readonly name: string; depth: number } | null = null;
  #pre = 0;
  #heading: number | null = null;

  constructor(private readonly source: string) {}

  open({ name, hidden, end }: Tag): void {
    if (FOREIGN.has(name) && this.source[end - 2] === "/") return;
    if (this.#hidden !== null) {
      if (this.#hidden.name === name) this.#hidden.depth++;
      return;
    }
    if (BLOCKS.has(name)) this.#endBlock();
    else if (CELLS.has(name)) this.#space();
    const level = HEADING.exec(name)?.[1];
    if (HIDDEN.has(name) || (hidden && BLOCKS.has(name) && !WITHOUT_CONTENT.has(name)))
      this.#hidden = { name, depth: 1 };
    else if (name === "pre") this.#pre++;
    else if (level !== undefined) this.#heading = Number(level);
  }

  close(name: string): void {
    if (this.#hidden !== null) {
      if (this.#hidden.name === name && --this.#hidden.depth === 0) this.#hidden = null;
      return;
    }
    if (BLOCKS.has(name)) this.#endBlock();
    if (name === "pre" && this.#pre > 0) this.#pre--;
    if (HEADING.test(name)) this.#heading = null;
  }

  text(start: number, end: number): void {
    if (this.#hidden !== null || end <= start) return;
    let from = start;
    for (const reference of references(this.source.slice(start, end))) {
      this.#write(from, start + reference.start);
      this.#append(reference.character, start + reference.start);
      from = start + reference.end;
    }
    this.#write(from, end);
  }

  end(): HtmlText {
    this.#endBlock();
    const runs = this.#runs;
    return {
      text: this.#finished.join(""),
      blocks: this.#outline.end(),
      sourceOffset: (offset) => {
        let [low, high] = [0, runs.length];
        while (low < high) {
          const middle = (low + high) >> 1;
          if ((runs[middle]?.offset ?? Infinity) <= offset) low = middle + 1;
          else high = middle;
        }
        const run = runs[low - 1];
        return run === undefined ? 0 : run.source + offset - run.offset;
      },
    };
  }

  #write(start: number, end: number): void {
    const part = this.source.slice(start, end);
    if (this.#pre > 0) {
      if (part !== "") this.#append(part, start);
      return;
    }
    for (const { 0: word, index } of part.matchAll(/\s+|\S+/g)) {
      if (word.trimStart() === "") this.#space();
      else this.#append(word, start + index);
    }
  }

  #append(part: string, source: number): void {
    this.#runs.push({ offset: this.#start + this.#block.length, source });
    this.#block += part;
    this.#endsWithSpace = /\s$/.test(part.slice(-1));
  }

  #space(): void {
    if (this.#endsWithSpace) return;
    this.#block += " ";
    this.#endsWithSpace = true;
  }

  #endBlock(): void {
    const words = this.#block.trim();
    if (words !== "") {
      const start = this.#start + this.#block.indexOf(words);
      const end = start + words.length;
      if (this.#heading === null) this.#outline.add(start, end);
      else this.#outline.heading(this.#heading, words, start, end);
      this.#finished.push(this.#block, "\n");
      this.#start += this.#block.length + 1;
    } else {
      // White space between blocks is not text; runs in it lead nowhere.
      while ((this.#runs.at(-1)?.offset ?? -1) >= this.#start) this.#runs.pop();
    }
    this.#block = "";
    this.#endsWithSpace = true;
  }
}

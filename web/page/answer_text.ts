// The text of an answer: folded reasoning, then Markdown, with a mark at each point where another side continues.

import { make } from "./elements.js";
import type { Route, Side } from "./model.js";
import { markWords } from "./route_words.js";
import { splitThinking } from "./thinking.js";
import type { MarkdownBlock } from "./markdown.js";
import { blockHtml, parseBlocks, sanitise } from "./markdown.js";
import { decorate } from "./rich_blocks.js";

/** In the Markdown source, each mark is a private-use character. */
const FIRST_MARK = 0xe800;
const MOST_MARKS = 64;
const MARKS = /[\ue800-\ue83f]/g;

export class AnswerText {
  readonly element = make("div", "text");
  readonly #answer = new MarkdownView((block) => {
    this.insertMarks(block);
  });
  readonly #thinking = new MarkdownView();
  readonly #summary = make("summary", "", "Thinking …");
  readonly #details = make("details", "thinking", this.#summary, this.#thinking.element);
  /** The text as the model wrote it. */
  #written = "";
  /** The same text with a character for each mark. */
  #source = "";
  #marks: Route[] = [];
  #sides: Side[] = [];
  #frame: number | null = null;

  /** The sides that wrote the text, in order; empty without a router. */
  get sides(): readonly Side[] {
    return this.#sides;
  }

  /** The text as the model wrote it, with its reasoning. */
  get written(): string {
    return this.#written;
  }

  /** The answer's Markdown without reasoning, for the clipboard and for later turns. */
  get plain(): string {
    return splitThinking(this.#written).answer;
  }

  clear(): void {
    this.#written = "";
    this.#source = "";
    this.#marks = [];
    this.#sides = [];
    this.#answer.clear();
    this.#thinking.clear();
    this.element.replaceChildren();
    this.render();
  }

  append(text: string): void {
    this.#written += text;
    this.#source += text.replace(MARKS, "\ufffd");
    // At most once per frame, because tokens may arrive faster than frames.
    this.#frame ??= requestAnimationFrame(() => {
      this.render();
    });
  }

  /** Set the side that writes the following text. If it starts the answer again, the text so far is removed. */
  follow(route: Route): void {
    const { side, switched_at: switchedAt } = route;
    if (side === this.#sides.at(-1)) return;
    const begun = this.#written !== "";
    // The side that wrote a stored text is not known.
    const isKnown = this.#sides.length > 0;
    const sides = begun ? [...this.#sides, side] : [side];
    const marks = this.#marks;
    if (switchedAt === 0) this.clear();
    this.#sides = sides;
    this.#marks = marks;
    if (!begun || !isKnown || marks.length === MOST_MARKS) return;
    this.#source += String.fromCharCode(FIRST_MARK + marks.length);
    this.#marks = [...marks, route];
    this.render();
  }

  /** Show all appended text. */
  render(): void {
    if (this.#frame !== null) cancelAnimationFrame(this.#frame);
    this.#frame = null;
    // A mark may come before the reasoning; it belongs to the answer.
    const [marks = ""] = /^[\ue800-\ue83f]*/.exec(this.#source) ?? [];
    const { thinking, ended, answer: text } = splitThinking(this.#source.slice(marks.length));
    const answer = marks + text;
    if (thinking !== null) {
      if (!this.#details.isConnected || this.#details.parentElement !== this.element)
        this.element.prepend(this.#details);
      this.#summary.textContent = ended ? "Thought" : "Thinking …";
      this.#thinking.update(thinking.replace(MARKS, ""));
    }
    this.#answer.update(answer);
    if (answer !== "" && this.#answer.element.parentElement !== this.element) this.element.append(this.#answer.element);
    this.element.dataset.markdown = this.plain;
  }

  private insertMarks(block: HTMLElement): void {
    const walker = document.createTreeWalker(block, NodeFilter.SHOW_TEXT);
    const texts: Text[] = [];
    while (walker.nextNode() !== null) texts.push(walker.currentNode as Text);
    for (const text of texts) {
      if (text.data.search(MARKS) < 0) continue;
      const parts = text.data.split(/([\ue800-\ue83f])/);
      text.replaceWith(...parts.filter((part) => part !== "").map((part) => this.partNode(part)));
    }
  }

  private partNode(part: string): Node {
    const route = this.#marks[part.charCodeAt(0) - FIRST_MARK];
    return route === undefined ? document.createTextNode(part) : mark(route);
  }
}

/** A mark has no text, so that it is not copied. */
function mark(route: Route): HTMLElement {
  const node = make("span", "mark");
  node.dataset.side = route.side;
  node.setAttribute("role", "img");
  node.setAttribute("aria-label", markWords(route));
  node.title = markWords(route);
  return node;
}

// Markdown that is shown while it is being written. Only the last block is rendered again as text arrives; finished
// blocks keep their elements.

class MarkdownView {
  readonly element = make("div", "markdown");
  /** The source of all blocks that are finished. */
  #finished = "";
  /** The block that still grows, and its HTML; null before there is one. */
  #growing: { readonly node: HTMLElement; html: string } | null = null;

  /** ``insert`` replaces private-use characters in a rendered block by elements of the caller. */
  constructor(private readonly insert: (block: HTMLElement) => void = () => undefined) {}

  clear(): void {
    this.element.replaceChildren();
    this.#finished = "";
    this.#growing = null;
  }

  /** Show the whole of ``source``, which usually begins with what was shown before. */
  update(source: string): void {
    if (!source.startsWith(this.#finished)) this.clear();
    const begin = this.#finished.length;
    const blocks = parseBlocks(source.slice(begin));
    for (const [index, block] of blocks.entries()) {
      this.show(block);
      // A block is finished once another follows: a list or a table may grow until then.
      if (index === blocks.length - 1) break;
      this.#finished = source.slice(0, begin + block.end);
      this.#growing = null;
    }
  }

  private show(block: MarkdownBlock): void {
    const html = blockHtml(block);
    this.#growing ??= this.begin();
    if (this.#growing.html === html) return;
    this.#growing.html = html;
    const { node } = this.#growing;
    node.replaceChildren(sanitise(html));
    decorate(node);
    this.insert(node);
  }

  private begin(): { readonly node: HTMLElement; html: string } {
    const node = make("div", "block");
    this.element.append(node);
    return { node, html: "" };
  }
}

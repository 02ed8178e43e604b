// The text of an answer: reasoning that can be unfolded, then Markdown, with a mark wherever another side goes on.

import { make } from "./elements.js";
import { MarkdownView } from "./markdown_view.js";
import type { Route, Side } from "./model.js";
import { markWords } from "./route_words.js";
import { splitThinking } from "./thinking.js";

/** Private-use characters stand for the marks in the Markdown source, one for each. */
const FIRST_MARK = 0xe800;
const MOST_MARKS = 64;
const MARKS = /[\ue800-\ue83f]/g;

export class AnswerText {
  readonly element = make("div", "text");
  readonly #answer = new MarkdownView((block) => {
    this.placeMarks(block);
  });
  readonly #thinking = new MarkdownView();
  readonly #summary = make("summary", "", "Thinking …");
  readonly #details = make("details", "thinking", this.#summary, this.#thinking.element);
  /** As the model wrote it. */
  #written = "";
  /** The same with a character for each mark. */
  #source = "";
  #marks: Route[] = [];
  #sides: Side[] = [];
  #frame: number | null = null;

  /** Who wrote the text, in order; empty if nobody said. */
  get sides(): readonly Side[] {
    return this.#sides;
  }

  /** As the model wrote it, reasoning included. */
  get written(): string {
    return this.#written;
  }

  /** The answer's Markdown without reasoning, as it is copied and as later turns read it. */
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
    // At most once a frame: tokens may come faster than pictures.
    this.#frame ??= requestAnimationFrame(() => {
      this.render();
    });
  }

  /** What comes next is from this side. If the answer starts anew there, what stood here is withdrawn. */
  follow(route: Route): void {
    const { side, switched_at: switchedAt } = route;
    if (side === this.#sides.at(-1)) return;
    const begun = this.#written !== "";
    const sides = begun ? [...this.#sides, side] : [side];
    const marks = this.#marks;
    if (switchedAt === 0) this.clear();
    this.#sides = sides;
    this.#marks = marks;
    if (!begun || marks.length === MOST_MARKS) return;
    this.#source += String.fromCharCode(FIRST_MARK + marks.length);
    this.#marks = [...marks, route];
    this.render();
  }

  /** Show all that was appended. */
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

  private placeMarks(block: HTMLElement): void {
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

/** It holds no text, so that it is not copied. */
function mark(route: Route): HTMLElement {
  const node = make("span", "mark");
  node.dataset.side = route.side;
  node.setAttribute("role", "img");
  node.setAttribute("aria-label", markWords(route));
  node.title = markWords(route);
  return node;
}

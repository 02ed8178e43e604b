// The text of an answer, in the parts that one side wrote each. Text and routes flow in; marks stand where it changed sides.

import { make } from "./elements.js";
import type { Route, Side } from "./model.js";
import { markWords } from "./route_words.js";

export class AnswerText {
  readonly element = make("p", "text");
  /** Where the text stands that comes next. */
  #part: HTMLElement = this.element;
  #sides: Side[] = [];

  /** Who wrote the text, in order; empty where nobody said. */
  get sides(): readonly Side[] {
    return this.#sides;
  }

  /** Without its marks, as it is copied. */
  get plain(): string {
    return this.element.textContent;
  }

  clear(): void {
    this.element.replaceChildren();
    this.#part = this.element;
    this.#sides = [];
  }

  append(text: string): void {
    this.#part.append(text);
  }

  /** What comes next is from this side. Where the answer starts anew on it, what stood there is withdrawn. */
  follow(route: Route): void {
    const { side, switched_at: switchedAt } = route;
    const last = this.#sides.at(-1);
    if (side === last) return;
    const written = this.plain !== "";
    if (switchedAt === 0) this.element.replaceChildren();
    this.#sides = written ? [...this.#sides, side] : [side];
    this.#part = make("span", "part");
    this.#part.dataset.side = side;
    this.element.append(...(written ? [mark(route)] : []), this.#part);
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

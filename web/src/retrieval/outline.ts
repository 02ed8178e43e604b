// Collects the blocks of a document with the headings above them. A heading without any text below becomes a block
// itself, so that it can be found.

import type { Block } from "./document.js";

interface Heading {
  readonly level: number;
  readonly title: string;
}

export class Outline {
  readonly #blocks: Block[] = [];
  #headings: readonly Heading[] = [];
  /** The last heading if no block has followed it yet. */
  #bare: (Block & { readonly level: number }) | null = null;

  add(start: number, end: number): void {
    if (end <= start) return;
    this.#bare = null;
    this.#blocks.push({ start, end, headings: this.#headings.map(({ title }) => title) });
  }

  heading(level: number, title: string, start: number, end: number): void {
    if (this.#bare !== null && level <= this.#bare.level) this.#addBare();
    const above = this.#headings.filter((heading) => heading.level < level);
    this.#bare = end > start ? { level, start, end, headings: above.map((heading) => heading.title) } : null;
    this.#headings = title === "" ? above : [...above, { level, title }];
  }

  end(): Block[] {
    this.#addBare();
    return this.#blocks;
  }

  #addBare(): void {
    if (this.#bare === null) return;
    const { start, end, headings } = this.#bare;
    this.#blocks.push({ start, end, headings });
    this.#bare = null;
  }
}

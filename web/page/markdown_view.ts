// Markdown that is shown while it is being written. Only the last block is rendered again as text arrives; finished
// blocks keep their elements.

import { make } from "./elements.js";
import type { MarkdownBlock } from "./markdown.js";
import { blockHtml, parseBlocks, sanitise } from "./markdown.js";
import { decorate } from "./rich_blocks.js";

export class MarkdownView {
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

// The blocks of a Markdown document: paragraphs, list items, rows of tables, and code blocks.

import type { Block } from "./document.js";
import type { Line } from "./lines.js";
import { linesOf } from "./lines.js";
import { Outline } from "./outline.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})/;
const HEADING = /^ {0,3}(#{1,6})(?=[ \t]|$)/;
const UNDERLINE = /^ {0,3}(?:(=+)|-{2,})[ \t]*$/;
// A list item or a row of a table begins a block of its own.
const ITEM = /^[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]|^[ \t]*\|/;
const RULE = /^ {0,3}(?:(?:[-*_][ \t]*){3,}|\|?(?:[ \t]*:?-+:?[ \t]*\|)+(?:[ \t]*:?-+:?)?[ \t]*)$/;

/** A heading above a passage is not longer than this, because every passage below repeats it. */
const MAX_TITLE = 200;

/** The blocks of the source, in its order. */
export function markdownBlocks(source: string): Block[] {
  const outline = new Outline();
  let block: Line[] = [];
  let fence: string | null = null;
  const close = (): void => {
    const last = block.at(-1);
    if (block[0] !== undefined && last !== undefined) outline.add(block[0].start, last.start + last.text.length);
    block = [];
  };
  for (const line of linesOf(source)) {
    const { text } = line;
    if (fence !== null) {
      block.push(line);
      if (closes(text, fence)) {
        fence = null;
        close();
      }
      continue;
    }
    const opened = FENCE.exec(text)?.[1];
    const heading = HEADING.exec(text);
    const underline = UNDERLINE.exec(text);
    if (opened !== undefined) {
      close();
      fence = opened;
      block.push(line);
    } else if (heading !== null) {
      close();
      outline.heading(
        heading[1]?.length ?? 1,
        titleOf(text.slice(heading[0].length)),
        line.start,
        line.start + text.length,
      );
    } else if (underline !== null && block.length === 1 && block[0] !== undefined && !ITEM.test(block[0].text)) {
      const [title] = block;
      block = [];
      outline.heading(underline[1] === undefined ? 2 : 1, titleOf(title.text), title.start, line.start + text.length);
    } else if (text.trim() === "" || RULE.test(text)) {
      close();
    } else {
      if (ITEM.test(text)) close();
      block.push(line);
    }
  }
  close();
  return outline.end();
}

function closes(text: string, fence: string): boolean {
  const closing = FENCE.exec(text)?.[1];
  return closing !== undefined && closing.startsWith(fence) && text.trim() === closing;
}

/** A heading without closing marks, emphasis, code marks and the addresses of links. */
function titleOf(heading: string): string {
  const words = heading
    .trim()
    .slice(0, MAX_TITLE)
    .split(/[ \t]+/);
  if (/^#+$/.test(words.at(-1) ?? "")) words.pop();
  return words
    .join(" ")
    .replace(/!?\[([^\]]*)\]\([^)]*\)/g, "$1")
    .replace(/[`*]|(?<![\p{L}\p{N}])_|_(?![\p{L}\p{N}])/gu, "");
}

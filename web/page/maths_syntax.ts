// The syntax of formulas in Markdown: $…$ and \(…\) within a line, $$…$$ and \[…\] as blocks. The renderer writes
// placeholders, which maths.ts fills.

import type { TokenizerAndRendererExtension, Tokens } from "marked";

import { escapeHtml } from "./escape_html.js";

const BLOCK = /^ {0,3}(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])[ \t]*(?:\n+|$)/;
/** A formula that is still being written, so that a blank line in it does not end the block. */
const OPEN_BLOCK = /^ {0,3}(?:\$\$[ \t]*\n|\\\[)[\s\S]*$/;
// A dollar sign of a price is followed by a digit and has no partner that touches a word.
const INLINE = /^(?:\$(?![\s$])((?:\\.|[^\\\n$])+?)(?<!\s)\$(?![\d$])|\\\((.+?)\\\))/;

export const mathsExtensions: TokenizerAndRendererExtension[] = [
  {
    name: "mathsBlock",
    level: "block",
    start: (text) => indexOf(text, /(?:^|\n) {0,3}(?:\$\$|\\\[)/),
    tokenizer(text) {
      const [raw, dollars, brackets] = BLOCK.exec(text) ?? [];
      if (raw !== undefined) return { type: "mathsBlock", raw, tex: (dollars ?? brackets ?? "").trim() };
      const [open] = OPEN_BLOCK.exec(text) ?? [];
      return open === undefined ? undefined : { type: "mathsBlock", raw: open, tex: null };
    },
    renderer: (token) => (token.tex === null ? `<p>${escapeHtml(token.raw)}</p>` : placeholder(token, true)),
  },
  {
    name: "mathsInline",
    level: "inline",
    start: (text) => indexOf(text, /\$|\\\(/),
    tokenizer(text) {
      const [raw, dollars, brackets] = INLINE.exec(text) ?? [];
      return raw === undefined ? undefined : { type: "mathsInline", raw, tex: dollars ?? brackets };
    },
    renderer: (token) => placeholder(token, false),
  },
];

function placeholder({ raw, tex }: Tokens.Generic, display: boolean): string {
  return (
    `<${display ? "div" : "span"} ` +
    `data-tex="${escapeHtml(String(tex))}">${escapeHtml(raw)}</${display ? "div" : "span"}>`
  );
}

function indexOf(text: string, pattern: RegExp): number | undefined {
  const index = text.search(pattern);
  return index < 0 ? undefined : index;
}

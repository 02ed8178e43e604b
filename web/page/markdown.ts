// Markdown to HTML in two steps: source to blocks, and one block to sanitised elements. Text from a model is hostile
// until the second step has passed it.

import DOMPurify from "dompurify";
import type { Token, TokenizerAndRendererExtension, Tokens } from "marked";
import { Marked } from "marked";
import { escapeHtml } from "./escape_html.js";

/** HTML tags that models write within Markdown. All other HTML is shown as text. */
const PLAIN_TAG = /^<\/?(?:br|sub|sup|kbd|mark|small|b|i|u|s|em|strong)\s*\/?>$/i;
const TAGS = [
  ..."a b blockquote br code del div em h3 h4 h5 h6 hr i kbd li mark ol p pre s".split(" "),
  ..."small span strong sub sup table tbody td th thead tr u ul".split(" "),
];
/** Attributes besides href whose values are not addresses. */
const ATTRIBUTES = ["align", "data-language", "data-tex", "start"];
const LINK = /^(?:https?:\/\/|mailto:)/i;

// The syntax of formulas in Markdown: $…$ and \(…\) within a line, $$…$$ and \[…\] as blocks. The renderer writes
// placeholders, which maths.ts fills.

const BLOCK = /^ {0,3}(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])[ \t]*(?:\n+|$)/;
/** A formula that is still being written, so that a blank line in it does not end the block. */
const OPEN_BLOCK = /^ {0,3}(?:\$\$[ \t]*\n|\\\[)[\s\S]*$/;
// A dollar sign of a price is followed by a digit and has no partner that touches a word.
const INLINE = /^(?:\$(?![\s$])((?:\\.|[^\\\n$])+?)(?<!\s)\$(?![\d$])|\\\((.+?)\\\))/;

const mathsExtensions: TokenizerAndRendererExtension[] = [
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

const marked = new Marked({
  gfm: true,
  breaks: true,
  extensions: mathsExtensions,
  renderer: {
    html: ({ text }) => (PLAIN_TAG.test(text.trim()) ? text : escapeHtml(text)),
    // The page's own headings come first.
    heading({ tokens, depth }) {
      const level = Math.min(depth + 2, 6);
      return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>`;
    },
    // An image would be fetched from a stranger's server, so the reader decides whether to follow its link.
    image: ({ href, text }) =>
      `<a href="${escapeHtml(href)}">${escapeHtml(text === "" ? "Image" : `Image: ${text}`)}</a>`,
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
    code: ({ text, lang }) =>
      `<pre><code data-language="${escapeHtml(lang?.split(/\s/, 1)[0] ?? "")}">${escapeHtml(text)}</code></pre>`,
  },
});

/** One block at the top level, such as a paragraph, a list or a table. */
export interface MarkdownBlock {
  readonly token: Token;
  /** The offset of the first character after it. */
  readonly end: number;
}

export function parseBlocks(source: string): readonly MarkdownBlock[] {
  let end = 0;
  const blocks = marked.lexer(source).map((token) => ({ token, end: (end += token.raw.length) }));
  return blocks.filter(({ token }) => token.type !== "space" && token.type !== "def");
}

/** The HTML of a block, not yet sanitised. */
export function blockHtml({ token }: MarkdownBlock): string {
  return marked.parser([token]);
}

/** Elements without scripts, styles, images, forms, and links other than to the web and to e-mail addresses. */
export function sanitise(html: string): DocumentFragment {
  const fragment = DOMPurify.sanitize(html, {
    ALLOWED_TAGS: TAGS,
    ALLOWED_ATTR: ["href", ...ATTRIBUTES],
    ADD_URI_SAFE_ATTR: ATTRIBUTES,
    ALLOWED_URI_REGEXP: LINK,
    ALLOW_DATA_ATTR: false,
    ALLOW_ARIA_ATTR: false,
    RETURN_DOM_FRAGMENT: true,
  });
  for (const link of fragment.querySelectorAll("a[href]")) {
    link.setAttribute("target", "_blank");
    link.setAttribute("rel", "noopener noreferrer");
  }
  return fragment;
}

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

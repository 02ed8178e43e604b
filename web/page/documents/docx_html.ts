// The text of a Word document as HTML: headings, paragraphs and tables. Its parts are XML (ECMA-376, part 1, 17).
// server_fallback/retrieval/docx_html.py does the same; tests/conformance/docx.json holds cases of both.

import { escapeHtml } from "../escape_html.js";
import { readXml } from "./xml.js";

const PREFIXES = new Map([
  ["http://schemas.openxmlformats.org/wordprocessingml/2006/main", "w"],
  ["http://purl.oclc.org/ooxml/wordprocessingml/main", "w"],
  ["http://schemas.openxmlformats.org/officeDocument/2006/math", "m"],
  ["http://purl.oclc.org/ooxml/officeDocument/math", "m"],
  ["http://schemas.openxmlformats.org/markup-compatibility/2006", "mc"],
]);
const ROOTS = new Set(["w:document", "w:footnotes", "w:endnotes"]);
/** What a reader does not see, or sees elsewhere: deleted and moved text, codes of fields, shapes for old versions. */
const UNSEEN = new Set(["w:del", "w:moveFrom", "w:instrText", "mc:Fallback"]);
const TEXT = new Set(["w:t", "m:t"]);
const INSTEAD = new Map([
  ["w:tab", " "],
  ["w:br", "<br>"],
  ["w:cr", "<br>"],
  ["w:noBreakHyphen", "-"],
]);
const TABLE = new Map([
  ["w:tbl", "table"],
  ["w:tr", "tr"],
  ["w:tc", "td"],
]);
const HEADING = /^heading ([1-9])$/i;

/** The levels of the styles that are headings, by their ids, from word/styles.xml. Throws Error for damaged XML. */
export function headingLevels(styles: Uint8Array): ReadonlyMap<string, number> {
  const levels = new Map<string, number>();
  let id = "";
  readXml(styles, PREFIXES, {
    open(name, attributes) {
      if (name === "w:style") id = attributes("styleId");
      const title = name === "w:name" ? attributes("val") : "";
      const level = title.toLowerCase() === "title" ? 1 : Number(HEADING.exec(title)?.[1] ?? 0);
      if (level > 0) levels.set(id, Math.min(level, 6));
    },
  });
  return levels;
}

/** The HTML of a part's text, such as word/document.xml. Throws Error for damaged XML, and for parts of other files. */
export function docxHtml(part: Uint8Array, levels: ReadonlyMap<string, number>): string {
  const html: string[] = [];
  // A shape in a paragraph has paragraphs of its own.
  const paragraphs: { text: string; level: number | undefined }[] = [];
  let [unseen, cells, depth, isText] = [0, 0, 0, false];
  readXml(part, PREFIXES, {
    open(name, attributes) {
      if (depth++ === 0 && !ROOTS.has(name)) throw new Error(`the root ${name} is not of a Word document`);
      if (UNSEEN.has(name)) unseen++;
      if (unseen > 0) return;
      isText = TEXT.has(name);
      const paragraph = paragraphs.at(-1);
      const element = TABLE.get(name);
      if (element !== undefined) html.push(`<${element}>`);
      if (name === "w:tc") cells++;
      if (name === "w:p") paragraphs.push({ text: "", level: undefined });
      else if (name === "w:pStyle" && paragraph !== undefined) paragraph.level = levels.get(attributes("val"));
      else if (paragraph !== undefined && paragraph.text !== "") paragraph.text += INSTEAD.get(name) ?? "";
    },
    text(text) {
      const paragraph = paragraphs.at(-1);
      if (isText && unseen === 0 && paragraph !== undefined) paragraph.text += escapeHtml(text);
    },
    close(name) {
      depth--;
      isText = false;
      if (UNSEEN.has(name)) unseen--;
      else if (unseen === 0) {
        const element = TABLE.get(name);
        if (element !== undefined) html.push(`</${element}>`);
        if (name === "w:tc") cells--;
        if (name === "w:p") html.push(blockOf(paragraphs.pop(), cells > 0));
      }
    },
  });
  return html.join("");
}

function blockOf(paragraph: { text: string; level: number | undefined } | undefined, inCell: boolean): string {
  const text = paragraph?.text.trim() ?? "";
  if (text === "") return "";
  // A row is one line.
  if (inCell) return `${text} `;
  const element = paragraph?.level === undefined ? "p" : `h${paragraph.level}`;
  return `<${element}>${text}</${element}>`;
}

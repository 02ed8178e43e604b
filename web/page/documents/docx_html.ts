// The text of a Word document as HTML: headings, paragraphs and tables. Its parts are XML (ECMA-376, part 1, 17).
// server_fallback/retrieval/docx_html.py does the same; tests/conformance/docx.json holds cases of both.

import { nextTag } from "../../src/retrieval/tags.js";

/** What a reader does not see, or sees elsewhere: deleted and moved text, codes of fields, shapes for old versions. */
const UNSEEN = new Set(["w:del", "w:movefrom", "w:instrtext", "mc:fallback"]);
const TEXT = new Set(["w:t", "m:t"]);
const INSTEAD = new Map([
  ["w:tab", " "],
  ["w:br", "<br>"],
  ["w:cr", "<br>"],
  ["w:nobreakhyphen", "-"],
]);
const TABLE = new Map([
  ["w:tbl", "table"],
  ["w:tr", "tr"],
  ["w:tc", "td"],
]);
const HEADING = /^heading ([1-9])$/i;

/** The levels of the styles that are headings, by their ids, from word/styles.xml. */
export function headingLevels(styles: string): ReadonlyMap<string, number> {
  const levels = new Map<string, number>();
  let id = "";
  for (const { name, closing, source } of tagsOf(styles)) {
    if (name === "w:style" && !closing) id = attribute(source, "w:styleId");
    const title = name === "w:name" ? attribute(source, "w:val") : "";
    const level = title.toLowerCase() === "title" ? 1 : Number(HEADING.exec(title)?.[1] ?? 0);
    if (level > 0) levels.set(id, Math.min(level, 6));
  }
  return levels;
}

/** The HTML of a part's text, such as word/document.xml or word/footnotes.xml. */
export function docxHtml(part: string, levels: ReadonlyMap<string, number>): string {
  const html: string[] = [];
  // A shape in a paragraph has paragraphs of its own.
  const paragraphs: { text: string; level: number | undefined }[] = [];
  let [unseen, cells, from] = [0, 0, 0];
  for (const { name, closing, empty, source, start, end } of tagsOf(part)) {
    const paragraph = paragraphs.at(-1);
    if (closing && TEXT.has(name) && unseen === 0 && paragraph !== undefined) paragraph.text += part.slice(from, start);
    from = end;
    if (UNSEEN.has(name) && !empty) unseen += closing ? -1 : 1;
    if (unseen > 0) continue;
    const element = TABLE.get(name);
    if (element !== undefined && !empty) {
      html.push(closing ? `</${element}>` : `<${element}>`);
      if (element === "td") cells += closing ? -1 : 1;
    }
    if (name === "w:p" && !empty) {
      if (!closing) paragraphs.push({ text: "", level: undefined });
      else html.push(blockOf(paragraphs.pop(), cells > 0));
    } else if (name === "w:pstyle" && paragraph !== undefined) paragraph.level = levels.get(attribute(source, "w:val"));
    else if (!closing && paragraph !== undefined && paragraph.text !== "") paragraph.text += INSTEAD.get(name) ?? "";
  }
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

function* tagsOf(xml: string) {
  for (let tag = nextTag(xml, 0); tag !== null; tag = nextTag(xml, tag.end))
    yield { ...tag, empty: xml[tag.end - 2] === "/", source: xml.slice(tag.start, tag.end) };
}

function attribute(tag: string, name: string): string {
  return new RegExp(`\\s${name}\\s*=\\s*(?:"([^"]*)"|'([^']*)')`).exec(tag)?.slice(1).join("") ?? "";
}

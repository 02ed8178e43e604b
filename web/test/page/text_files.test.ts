import { expect, it } from "vitest";

import words from "../../../tests/conformance/docx.json" with { type: "json" };
import files from "../../../tests/conformance/text_files.json" with { type: "json" };
import { MOST_CHARACTERS } from "../../page/documents/bounds.js";
import { docxHtml, headingLevels } from "../../page/documents/docx_html.js";
import { decodeText, notText, unreadableKind } from "../../page/text_encoding.js";

it.each(files.cases)("$name is decoded, or refused with the reason", ({ name, base64, text, reason }) => {
  const bytes = Uint8Array.from(Buffer.from(base64, "base64"));
  const refused = unreadableKind(name, bytes);
  const found = refused === null ? decodeText(bytes, { html: name.endsWith(".html") }) : null;
  expect(found).toBe(text);
  if (found === null) expect(refused ?? notText(bytes)).toBe(reason);
});

it.each(words.cases)("Word: $about", ({ document, styles, encoding, html }) => {
  const read = () =>
    docxHtml(Buffer.from(document, encoding as BufferEncoding), headingLevels(Buffer.from(styles ?? "<none/>")));
  if (html === null) expect(read).toThrow(Error);
  else expect(read()).toBe(html);
});

it("bounds texts as the server does", () => {
  expect(MOST_CHARACTERS).toBe(files.max_characters);
});

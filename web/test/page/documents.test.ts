import { textOf } from "../../page/fit_messages.js";
import { strToU8, zipSync } from "fflate";
import { describe, expect, it } from "vitest";

import words from "../../../tests/conformance/docx.json" with { type: "json" };
import type { AnswerEvent } from "../../page/documents/ask.js";
import { askDocuments } from "../../page/documents/ask.js";
import { citedParts } from "../../page/documents/citations.js";
import { MOST_CHARACTERS } from "../../page/documents/bounds.js";
import { readDocumentFile } from "../../page/documents/read_document.js";
import { BORDER_CHARACTERS, promptOf, sourcesOf } from "../../page/documents/sources.js";
import type { ChatMessage, Piece, Side } from "../../page/model.js";
import type { Hit } from "../../src/retrieval/index.js";
import { RetrievalIndex } from "../../src/retrieval/index.js";
import { parsePolicy } from "../../src/shared/decision/policy.js";

const POLICY = parsePolicy({ version: 1, mode: "auto", private: { patterns: ["secret-\\d{4}"] } });
const FILLER = "Nothing of interest happens on the road between the two towns. ".repeat(3);
const TEXT = `Ben lives in Rome.\n\n${FILLER}\n\nThe code is secret-1234.\n\n${FILLER}\n\nAna lives in Oslo.\n`;

function hit(text: string, part: string, title = "people.txt"): Hit {
  const start = text.indexOf(part);
  const passage = { text: part, start, end: start + part.length, headings: [] };
  return { document: "people.txt", title, passage, score: 1, similarity: null };
}

function privateOf(text: string, part: string, locked: readonly string[] = [], title?: string): boolean | undefined {
  return sourcesOf([hit(text, part, title)], new Map([["people.txt", text]]), POLICY, new Set(locked))[0]?.private;
}

describe("sourcesOf", () => {
  it("keeps passages with a private pattern, near one, in a document with one in its title, and of locked documents", () => {
    expect(privateOf(TEXT, "Ben lives in Rome.")).toBe(false);
    expect(privateOf(TEXT, "The code is secret-1234.")).toBe(true);
    expect(
      privateOf(`Ben lives in Rome. ${"x".repeat(BORDER_CHARACTERS - 20)} secret-1234`, "Ben lives in Rome."),
    ).toBe(true);
    // A passage that a private text is cut by.
    expect(privateOf("Ben lives in secret-1234", "Ben lives in secret-12")).toBe(true);
    expect(privateOf(TEXT, "Ben lives in Rome.", [], "secret-1234.txt")).toBe(true);
    expect(privateOf(TEXT, "Ben lives in Rome.", ["people.txt"])).toBe(true);
  });
});

describe("citedParts", () => {
  const sources = sourcesOf(
    ["Ben lives in Rome.", "Ana lives in Oslo."].map((part) => hit(TEXT, part)),
    new Map(),
    null,
    new Set(),
  );

  it("reads the model's marks, before and after the end of a sentence", () => {
    expect(citedParts("He is in Rome [1]. She is not. [1, 2] Who?", sources)).toEqual([
      { text: "He is in Rome. ", numbers: [1], matched: false },
      { text: "She is not. ", numbers: [1, 2], matched: false },
      { text: "Who?", numbers: [], matched: false },
    ]);
  });

  it("matches a sentence without marks by its words, and leaves numbers of no passage in the text", () => {
    expect(citedParts("Ana lives in Oslo.", sources)).toEqual([
      { text: "Ana lives in Oslo.", numbers: [2], matched: true },
    ]);
    expect(citedParts("It never rains there [7].", sources)).toEqual([
      { text: "It never rains there [7].", numbers: [], matched: false },
    ]);
  });
});

describe("readDocumentFile", () => {
  it("reads the format of the file's name, and refuses other files by name", async () => {
    const html = await readDocumentFile(new File(["<h1>A</h1><p>b &amp; c</p>"], "a.html"), 600);
    expect(html.document.text).toContain("b & c");
    const bytes = new Uint8Array([0x50, 0x4b, 3, 4, 0, 0xff]);
    await expect(readDocumentFile(new File([bytes], "a.xlsx"), 600)).rejects.toThrow("a.xlsx is a spreadsheet; save");
    await expect(readDocumentFile(new File([bytes], "a.docx"), 600)).rejects.toThrow("a.docx is not a Word document");
    await expect(readDocumentFile(new File([" \n"], "a.txt"), 600)).rejects.toThrow("a.txt has no text");
    await expect(readDocumentFile(new File([new Uint8Array(50_000_001)], "a.txt"), 600)).rejects.toThrow("at most 50");
    await expect(readDocumentFile(new File(["<html>"], "a.docx"), 600)).rejects.toThrow("a.docx is a web page or XML");
  });
});

describe("readDocumentFile of a Word document", () => {
  const zipped = (parts: Readonly<Record<string, string>>) =>
    new Uint8Array(zipSync(Object.fromEntries(Object.entries(parts).map(([name, text]) => [name, strToU8(text)]))));
  const docx = (parts: Readonly<Record<string, string>>): File => new File([zipped(parts)], "a.docx");
  const relations = (targets: Readonly<Record<string, string>>): string => {
    const office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships";
    const entries = Object.entries(targets).map(([kind, target]) => `<r Type="${office}/${kind}" Target="${target}"/>`);
    return `<r:Relationships xmlns:r="urn:r">${entries.join("")}</r:Relationships>`;
  };
  const [first, second] = words.cases;
  const document = first?.document ?? "";
  const parts = {
    "_rels/.rels": relations({ officeDocument: "word/document.xml" }),
    "word/_rels/document.xml.rels": relations({ styles: "styles.xml", footnotes: "/word/footnotes.xml" }),
    "word/document.xml": document,
    "word/styles.xml": first?.styles ?? "",
  };

  it("reads the text with its notes, and the headings of a passage", async () => {
    const notes = second?.document.replaceAll("w:document", "w:footnotes") ?? "";
    const read = await readDocumentFile(docx({ ...parts, "word/footnotes.xml": notes }), 600);
    expect(read.document.text).toBe("Plan\nEins\ntief\nText\ntwo words a\nb-c\n");
    expect(read.document.passages.at(-1)?.headings).toEqual(["Eins", "tief"]);
  });

  it("finds the main part by its relation, whatever its name", async () => {
    const read = await readDocumentFile(
      docx({
        "_rels/.rels": relations({ officeDocument: "Word/My%20text.xml" }),
        "word/_rels/my text.xml.rels": relations({ styles: "../styles.xml" }),
        "word/my text.xml": document,
        "styles.xml": parts["word/styles.xml"],
      }),
      600,
    );
    expect(read.document.passages.at(-1)?.headings).toEqual(["Eins", "tief"]);
  });

  it("refuses other archives, and text that is too long", async () => {
    const refused = "a.docx is not a Word document that can be read; save it again, or add its text";
    await expect(readDocumentFile(docx({ "a.xml": "" }), 600)).rejects.toThrow(refused);
    await expect(readDocumentFile(docx({ ...parts, "word/document.xml": "<w/>" }), 600)).rejects.toThrow(refused);
    const bomb = docx({ ...parts, "word/document.xml": " ".repeat(64_000_001) });
    expect(bomb.size).toBeLessThan(100_000);
    await expect(readDocumentFile(bomb, 600)).rejects.toThrow("a.docx unpacks to more than 64.0 MB; add a part of it");
    const long = "a.docx has more than 5,000,000 characters of text; add a part of it";
    const text = "x".repeat(MOST_CHARACTERS);
    await expect(
      readDocumentFile(docx({ ...parts, "word/document.xml": document.replace("Text", text) }), 600),
    ).rejects.toThrow(long);
    await expect(readDocumentFile(new File([`${text} `], "a.txt"), 600)).rejects.toThrow("a.txt has more than 5");
  });

  it.each([-1, 1])("refuses a part whose stated length is wrong by %i", async (difference) => {
    const bytes = zipped(parts);
    const view = new DataView(bytes.buffer);
    const entry = Buffer.from(bytes).lastIndexOf("word/document.xml") - 46;
    expect(view.getUint32(entry + 24, true)).toBe(document.length);
    view.setUint32(entry + 24, document.length + difference, true);
    await expect(readDocumentFile(new File([bytes], "a.docx"), 600)).rejects.toThrow("is not a Word document");
  });

  it("refuses a damaged part by its checksum", async () => {
    const bytes = zipped(parts);
    const entry = Buffer.from(bytes).lastIndexOf("word/document.xml") - 46;
    bytes[entry + 16] = (bytes[entry + 16] ?? 0) ^ 1;
    await expect(readDocumentFile(new File([bytes], "a.docx"), 600)).rejects.toThrow("is not a Word document");
  });
});

/** Sides of which the router chooses ``side``; ``seen`` records what they are sent. */
function twoSides(side: Side, seen: string[]) {
  const answer = async function* (messages: readonly ChatMessage[]): AsyncGenerator<Piece, never, undefined> {
    await Promise.resolve();
    seen.push(`${side}: ${messages.map(({ content }) => textOf(content)).join()}`);
    yield { type: "route", route: { side, reason: "prefer", scores: null, switched_at: null } as never };
    yield { type: "text", text: "an answer" };
    return undefined as never;
  };
  return { answer, policy: POLICY, farModel: "far", words: () => "", locks: true, journals: undefined as never };
}

async function ask(side: Side, hasNear = true): Promise<{ seen: string[]; events: AnswerEvent[] }> {
  const embedder = {
    model: "m",
    dimensions: 2,
    embed: (texts: readonly string[]) => Promise.resolve(texts.map(() => Float32Array.of(1, 0))),
  };
  const index = await RetrievalIndex.open("test", embedder, { store: false, device: "cpu" });
  const passages = ["Ben lives in Rome.", "The code is secret-1234.", "Ana lives in Oslo."].map(
    (part) => hit(TEXT, part).passage,
  );
  await index.add([{ id: "people.txt", document: { text: TEXT, passages } }]);
  const seen: string[] = [];
  const answerer = {
    async *answer(messages: readonly ChatMessage[]): AsyncGenerator<Piece, never, undefined> {
      await Promise.resolve();
      seen.push(`this device: ${messages.map(({ content }) => textOf(content)).join()}`);
      yield { type: "text", text: "an answer" };
      return undefined as never;
    },
  };
  const engine = { info: { context: 1000 }, countTokens: () => Promise.resolve(10) };
  const near = hasNear ? { engine: engine as never, answerer } : null;
  const events: AnswerEvent[] = [];
  const answering = { index, near, sides: twoSides(side, seen), locked: new Set<string>(), style: "numbered" as const };
  for await (const event of askDocuments("Where is the code?", answering, new AbortController().signal))
    events.push(event);
  return { seen, events };
}

describe("askDocuments", () => {
  it("sends the far side only passages that are not private", async () => {
    const { seen, events } = await ask("far");
    expect(seen).toHaveLength(1);
    expect(seen[0]).toContain("Ben lives in Rome");
    expect(seen[0]).not.toContain("secret");
    expect(events.find((event) => event.type === "side")).toMatchObject({
      side: "far",
      given: [{ private: false }, { private: false }],
    });
  });

  it("answers from all passages if the router chooses this device", async () => {
    const { seen, events } = await ask("near");
    expect(seen.map((request) => request.includes("secret-1234"))).toEqual([false, true]);
    expect(seen[1]).toMatch(/^this device/);
    expect(events.filter((event) => event.type === "text")).toHaveLength(1);
  });

  it("keeps private passages also if this device has no model", async () => {
    const { seen } = await ask("far", false);
    expect(seen.join()).not.toContain("secret");
  });
});

describe("promptOf", () => {
  it("numbers the passages, or writes them as the demo models read a text", () => {
    const sources = sourcesOf([hit(TEXT, "Ana lives in Oslo.")], new Map(), null, new Set());
    expect(promptOf("Where?", sources, "numbered")).toContain("[1] people.txt\nAna lives in Oslo.");
    expect(promptOf("Where?", sources, "plain")).toBe("Ana lives in Oslo. Where?");
  });
});

// Reads XML (https://www.w3.org/TR/xml/, with its namespaces) by sax, in the encoding that it declares.

import sax from "sax";

/** The value of the attribute of this name in any namespace; "" if there is none. */
export type Attributes = (name: string) => string;

export interface XmlEvents {
  /** ``name``: the element's, behind the prefix of its namespace in `readXml`'s table, or behind none. */
  readonly open: (name: string, attributes: Attributes) => void;
  readonly text?: (text: string) => void;
  readonly close?: (name: string) => void;
}

/** ``prefixes``: by namespaces. Throws Error for a text that is not well-formed. */
export function readXml(xml: Uint8Array, prefixes: ReadonlyMap<string, string>, events: XmlEvents): void {
  const parser = sax.parser(true, { xmlns: true, position: false });
  const open: string[] = [];
  let elements = 0;
  parser.onerror = (error) => {
    throw error;
  };
  parser.onopentag = (tag) => {
    const { uri, local, attributes } = tag as sax.QualifiedTag;
    const name = `${prefixes.get(uri) ?? ""}:${local}`;
    open.push(name);
    elements++;
    events.open(name, (wanted) => Object.values(attributes).find((each) => each.local === wanted)?.value ?? "");
  };
  parser.ontext = parser.oncdata = (text) => {
    events.text?.(text);
  };
  parser.onclosetag = () => {
    events.close?.(open.pop() ?? "");
  };
  parser.write(decodeXml(xml)).close();
  if (elements === 0) throw new Error("the XML has no element");
}

const DECLARED = /^(?:\xef\xbb\xbf)?<\?xml[^>]*\sencoding\s*=\s*["']([\w.:-]+)["']/;
const DECLARATION_BYTES = 200;

/** By the byte order mark, the zero bytes of UTF-16, or the declaration (XML 1.0, appendix F); UTF-8 without them. */
function decodeXml(xml: Uint8Array): string {
  const [first, second] = xml;
  const start = new TextDecoder("latin1").decode(xml.subarray(0, DECLARATION_BYTES));
  const encoding =
    (first === 0xff && second === 0xfe) || start.startsWith("<\0")
      ? "utf-16le"
      : (first === 0xfe && second === 0xff) || start.startsWith("\0<")
        ? "utf-16be"
        : (DECLARED.exec(start)?.[1] ?? "utf-8");
  const decoder = new TextDecoder(encoding, { fatal: true });
  // In one call, Node 20 decodes Windows-1252 as Latin-1.
  return decoder.decode(xml, { stream: true }) + decoder.decode();
}

// The text of a Word document (.docx), a zip archive of XML. The page loads this with the first one.

import { RequestError } from "../../src/errors.js";
import { formatBytes } from "../../src/format_bytes.js";
import { docxHtml, headingLevels } from "./docx_html.js";
import { readXml } from "./xml.js";
import { ZipArchive } from "./zip_archive.js";

/** Of a part's XML: a small archive may unpack to any size. */
const MOST_PART_BYTES = 64_000_000;
/** Behind this, the names of a part's relations have their kind (ECMA-376, part 1, 15.2, and part 4). */
const RELATION =
  /^http:\/\/(?:schemas\.openxmlformats\.org\/officeDocument\/2006|purl\.oclc\.org\/ooxml\/officeDocument)\/relationships\/(\w+)$/;

/** The document as HTML. Throws RequestError, which names the file, for a damaged or too large one. */
export async function readDocx(name: string, bytes: Uint8Array<ArrayBuffer>): Promise<string> {
  try {
    const opened = new Package(name, new ZipArchive(bytes));
    const main = (await opened.related("")).get("officeDocument") ?? "";
    const others = await opened.related(main);
    const styles = await opened.part(others.get("styles"));
    const levels = styles === null ? new Map<string, number>() : headingLevels(styles);
    const html: string[] = [docxHtml((await opened.part(main)) ?? new Uint8Array(), levels)];
    for (const kind of ["footnotes", "endnotes"]) {
      const notes = await opened.part(others.get(kind));
      if (notes !== null) html.push(docxHtml(notes, levels));
    }
    return html.join("");
  } catch (error) {
    if (error instanceof RequestError) throw error;
    throw new RequestError(`${name} is not a Word document that can be read; save it again, or add its text`);
  }
}

/** The parts of a document, and their relations (ECMA-376, part 2). Throws Error for damaged ones. */
class Package {
  constructor(
    private readonly fileName: string,
    private readonly archive: ZipArchive,
  ) {}

  /** Null for one that does not exist. Throws RequestError for one that is too large. */
  async part(path: string | undefined): Promise<Uint8Array | null> {
    if (path === undefined || !this.archive.has(path)) return null;
    const bytes = await this.archive.read(path, MOST_PART_BYTES);
    if (bytes !== null) return bytes;
    throw new RequestError(`${this.fileName} unpacks to more than ${formatBytes(MOST_PART_BYTES)}; add a part of it`);
  }

  /** The paths of the parts that belong to the part at ``path``, by the kind of their relation; "" is the package. */
  async related(path: string): Promise<ReadonlyMap<string, string>> {
    const base = new URL(path, "zip:///");
    const xml = await this.part(path.replace(/[^/]*$/, "_rels/$&.rels"));
    const paths = new Map<string, string>();
    const open = (_: string, attributes: (name: string) => string): void => {
      const kind = RELATION.exec(attributes("Type"))?.[1];
      if (kind === undefined || paths.has(kind) || attributes("TargetMode") === "External") return;
      paths.set(kind, decodeURIComponent(new URL(attributes("Target"), base).pathname.slice(1)));
    };
    if (xml !== null) readXml(xml, new Map(), { open });
    return paths;
  }
}

// Read the arguments of a tool call from the text of an answer, and write them as JSON while they come. There is one
// reader for each syntax of a ToolFormatEntry. server_fallback/text/argument_readers.py does the same.

/**
 * How many characters of the text that is not read yet were read, the JSON that they add, and whether the arguments are
 * complete.
 */
export type Read = readonly [length: number, json: string, done: boolean];

/** The JSON of all results, in order, does not depend on how the text is cut into pieces. */
export interface ArgumentReader {
  read(text: string): Read;
}

const QUOTE = '<|"|>';
const VALUE_END = "</parameter>";
const PYTHON_CONSTANTS: Readonly<Record<string, string>> = { True: "true", False: "false", None: "null" };

/** Follows JSON text until its first object ends. With ``depth`` 1, the object has already begun. */
export class JsonReader implements ArgumentReader {
  #inString = false;
  #escaped = false;
  #depth: number;

  constructor(depth = 0) {
    this.#depth = depth;
  }

  read(text: string): Read {
    const end = this.end(text);
    const read = end < 0 ? text : text.slice(0, end);
    return [read.length, read, end >= 0];
  }

  /** The index after the object's closing brace; -1 if ``text`` does not contain it. */
  end(text: string): number {
    for (let at = 0; at < text.length; at++) {
      const character = text[at] ?? "";
      if (this.#escaped) this.#escaped = false;
      else if (this.#inString) {
        this.#escaped = character === "\\";
        this.#inString = character !== '"';
      } else if (character === '"') this.#inString = true;
      else if (character === "{" || character === "[") this.#depth++;
      else if ((character === "}" || character === "]") && --this.#depth === 0) return at + 1;
    }
    return -1;
  }
}

/** `{key:<|"|>text<|"|>,other:[1,true]}`. Words that are not JSON become strings. */
export class GemmaReader implements ArgumentReader {
  readonly #open: string[] = [];
  #inString = false;
  /** A key, a number or a constant that has not ended. */
  #word = "";
  #isKey = false;

  read(text: string): Read {
    let at = 0;
    let json = "";
    while (at < text.length) {
      if (this.#inString) {
        const end = text.indexOf(QUOTE, at);
        let stop = end < 0 ? text.length - overlap(text.slice(at), QUOTE) : end;
        // Half of a surrogate pair waits for the other half.
        if (end < 0 && stop > at && /[\ud800-\udbff]/.test(text[stop - 1] ?? "")) stop--;
        const part = text.slice(at, stop);
        if (this.#isKey) this.#word += part;
        else json += JSON.stringify(part).slice(1, -1);
        at = stop;
        if (end < 0) break;
        this.#inString = false;
        at += QUOTE.length;
        if (!this.#isKey) json += '"';
        continue;
      }
      const ahead = text.slice(at, at + QUOTE.length);
      if (ahead !== "" && QUOTE.startsWith(ahead)) {
        if (ahead.length < QUOTE.length) break;
        at += QUOTE.length;
        this.#inString = true;
        if (!this.#isKey) json += `${this.#flushed()}"`;
        continue;
      }
      json += this.#structure(text[at++] ?? "");
      if (this.#open.length === 0) return [at, json, true];
    }
    return [at, json, false];
  }

  #structure(character: string): string {
    switch (character) {
      case "{":
      case "[":
        this.#open.push(character);
        this.#isKey = character === "{";
        return character;
      case "}":
      case "]": {
        const flushed = this.#isKey ? "" : this.#flushed();
        this.#open.pop();
        this.#isKey = false;
        this.#word = "";
        return flushed + character;
      }
      case ",": {
        const flushed = this.#flushed();
        this.#isKey = this.#open.at(-1) === "{";
        return flushed + character;
      }
    }
    if (character === ":" && this.#isKey) {
      const key = JSON.stringify(this.#word.trim());
      this.#word = "";
      this.#isKey = false;
      return key + character;
    }
    this.#word += character;
    return "";
  }

  #flushed(): string {
    const word = this.#word.trim();
    this.#word = "";
    return word === "" ? "" : jsonValue(word);
  }
}

/**
 * `<parameter=key>` elements up to `</function>` or ``close``. The values of ``texts`` are strings; every other value
 * is JSON, or a string if it is not JSON.
 */
export class XmlReader implements ArgumentReader {
  #key: string | null = null;
  #count = -1;

  constructor(
    private readonly texts: ReadonlySet<string>,
    private readonly close: string,
  ) {}

  read(text: string): Read {
    let rest = text;
    let json = this.#count < 0 ? "{" : "";
    this.#count = Math.max(this.#count, 0);
    const result = (done: boolean): Read => [text.length - rest.length, json, done];
    for (;;) {
      if (this.#key !== null) {
        const end = rest.indexOf(VALUE_END);
        if (end < 0) return result(false);
        json += this.#member(this.#key, rest.slice(0, end));
        this.#key = null;
        rest = rest.slice(end + VALUE_END.length);
        continue;
      }
      const begin = /^\s*<parameter=([^>\n]*)>/.exec(rest);
      const ended = /^\s*<\/function>/.exec(rest);
      const bare = rest.trimStart();
      if (begin !== null) {
        this.#key = begin[1] ?? "";
        rest = rest.slice(begin[0].length);
      } else if (ended !== null || bare.startsWith(this.close)) {
        rest = rest.slice(ended?.[0].length ?? 0);
        json += "}";
        return result(true);
      } else if (
        ["<parameter=", "</function>", this.close].some((tag) => tag.startsWith(bare)) ||
        /^<parameter=[^>\n]*$/.test(bare)
      ) {
        return result(false);
      } else {
        // Text between the elements has no meaning.
        const following = rest.indexOf("<", rest.length - bare.length + 1);
        rest = following < 0 ? "" : rest.slice(following);
      }
    }
  }

  #member(key: string, raw: string): string {
    const value = raw.replace(/^\n/, "").replace(/\n$/, "");
    const written = this.texts.has(key) ? JSON.stringify(value) : jsonValue(value);
    return `${this.#count++ > 0 ? "," : ""}${JSON.stringify(key)}:${written}`;
  }
}

/** The JSON of a value: the text itself if it is JSON, or else a string. Python's constants are also read. */
function jsonValue(text: string): string {
  let trimmed = text.trim();
  if (Object.hasOwn(PYTHON_CONSTANTS, trimmed)) trimmed = PYTHON_CONSTANTS[trimmed] ?? "";
  try {
    JSON.parse(trimmed);
    return trimmed;
  } catch {
    return JSON.stringify(text);
  }
}

/** The length of the longest suffix of ``text`` that is a prefix of ``tag``. */
export function overlap(text: string, tag: string): number {
  for (let length = Math.min(text.length, tag.length - 1); length > 0; length--)
    if (tag.startsWith(text.slice(-length))) return length;
  return 0;
}

// The readable text of an HTML document, with its blocks. It needs no DOM, so it also works in a worker, and it never
// runs or fetches anything that the document names.

import type { Block } from "./document.js";
import { Outline } from "./outline.js";
import type { Tag } from "./tags.js";
import { nextTag } from "./tags.js";

// https://html.spec.whatwg.org/multipage/rendering.html#flow-content-3, and the rows and items that a browser shows
// below each other.
const BLOCKS = new Set(
  (
    "address article aside blockquote body br caption center dd details dialog dir div dl dt fieldset figcaption " +
    "figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr html legend li main menu nav ol optgroup option p pre " +
    "section select summary table tbody tfoot thead tr ul"
  ).split(" "),
);
const CELLS = new Set(["td", "th"]);
// Elements that browsers do not show as text.
const HIDDEN = new Set("script style head template noscript textarea title svg math iframe object".split(" "));
// Elements whose content is not markup.
const RAW = new Set(["script", "style", "textarea", "title", "iframe", "noscript"]);
// Only these may be closed by "/>".
const FOREIGN = new Set(["svg", "math"]);
const WITHOUT_CONTENT = new Set(["br", "hr"]);
const HEADING = /^h([1-6])$/;

export interface HtmlText {
  readonly text: string;
  readonly blocks: readonly Block[];
  readonly sourceOffset: (offset: number) => number;
}

/** The text that a reader of the document sees. White space is collapsed, except in ``pre``. */
export function readHtml(source: string): HtmlText {
  const reader = new Reader(source);
  let from = 0;
  for (let tag = nextTag(source, 0); tag !== null; tag = nextTag(source, from)) {
    reader.text(from, tag.start);
    from = tag.end;
    if (tag.name === "") continue;
    if (tag.closing) reader.close(tag.name);
    else {
      reader.open(tag);
      if (RAW.has(tag.name)) from = endOfRaw(source, tag);
    }
  }
  reader.text(from, source.length);
  return reader.end();
}

/** The offset of the closing tag of an element without markup. */
function endOfRaw(source: string, { name, end }: Tag): number {
  const closing = new RegExp(`</${name}(?=[\\s/>])`, "gi");
  closing.lastIndex = end;
  return closing.exec(source)?.index ?? source.length;
}

/** A part of the text, as long here as in the source. */
interface Run {
  readonly offset: number;
  readonly source: number;
}

class Reader {
  readonly #outline = new Outline();
  readonly #runs: Run[] = [];
  readonly #finished: string[] = [];
  /** The open block, and its offset. */
  #block = "";
  #start = 0;
  /** Whether another space would not be shown: at the start of a block, and after a space. */
  #endsWithSpace = true;
  #hidden: { readonly name: string; depth: number } | null = null;
  #pre = 0;
  #heading: number | null = null;

  constructor(private readonly source: string) {}

  open({ name, hidden, end }: Tag): void {
    if (FOREIGN.has(name) && this.source[end - 2] === "/") return;
    if (this.#hidden !== null) {
      if (this.#hidden.name === name) this.#hidden.depth++;
      return;
    }
    if (BLOCKS.has(name)) this.#endBlock();
    else if (CELLS.has(name)) this.#space();
    const level = HEADING.exec(name)?.[1];
    if (HIDDEN.has(name) || (hidden && BLOCKS.has(name) && !WITHOUT_CONTENT.has(name)))
      this.#hidden = { name, depth: 1 };
    else if (name === "pre") this.#pre++;
    else if (level !== undefined) this.#heading = Number(level);
  }

  close(name: string): void {
    if (this.#hidden !== null) {
      if (this.#hidden.name === name && --this.#hidden.depth === 0) this.#hidden = null;
      return;
    }
    if (BLOCKS.has(name)) this.#endBlock();
    if (name === "pre" && this.#pre > 0) this.#pre--;
    if (HEADING.test(name)) this.#heading = null;
  }

  text(start: number, end: number): void {
    if (this.#hidden !== null || end <= start) return;
    let from = start;
    for (const reference of references(this.source.slice(start, end))) {
      this.#write(from, start + reference.start);
      this.#append(reference.character, start + reference.start);
      from = start + reference.end;
    }
    this.#write(from, end);
  }

  end(): HtmlText {
    this.#endBlock();
    const runs = this.#runs;
    return {
      text: this.#finished.join(""),
      blocks: this.#outline.end(),
      sourceOffset: (offset) => {
        let [low, high] = [0, runs.length];
        while (low < high) {
          const middle = (low + high) >> 1;
          if ((runs[middle]?.offset ?? Infinity) <= offset) low = middle + 1;
          else high = middle;
        }
        const run = runs[low - 1];
        return run === undefined ? 0 : run.source + offset - run.offset;
      },
    };
  }

  #write(start: number, end: number): void {
    const part = this.source.slice(start, end);
    if (this.#pre > 0) {
      if (part !== "") this.#append(part, start);
      return;
    }
    for (const { 0: word, index } of part.matchAll(/\s+|\S+/g)) {
      if (word.trimStart() === "") this.#space();
      else this.#append(word, start + index);
    }
  }

  #append(part: string, source: number): void {
    this.#runs.push({ offset: this.#start + this.#block.length, source });
    this.#block += part;
    this.#endsWithSpace = /\s$/.test(part.slice(-1));
  }

  #space(): void {
    if (this.#endsWithSpace) return;
    this.#block += " ";
    this.#endsWithSpace = true;
  }

  #endBlock(): void {
    const words = this.#block.trim();
    if (words !== "") {
      const start = this.#start + this.#block.indexOf(words);
      const end = start + words.length;
      if (this.#heading === null) this.#outline.add(start, end);
      else this.#outline.heading(this.#heading, words, start, end);
      this.#finished.push(this.#block, "\n");
      this.#start += this.#block.length + 1;
    } else {
      // White space between blocks is not text; runs in it lead nowhere.
      while ((this.#runs.at(-1)?.offset ?? -1) >= this.#start) this.#runs.pop();
    }
    this.#block = "";
    this.#endsWithSpace = true;
  }
}

// HTML's character references: all numeric ones, and the names of HTML 4 (https://www.w3.org/TR/html4/sgml/entities.html).
// A browser shows a reference that it does not know as it is written, and so does this module.

// The names of U+00A0 to U+00FF, in their order.
const LATIN =
  "nbsp iexcl cent pound curren yen brvbar sect uml copy ordf laquo not shy reg macr deg plusmn sup2 sup3 acute micro " +
  "para middot cedil sup1 ordm raquo frac14 frac12 frac34 iquest Agrave Aacute Acirc Atilde Auml Aring AElig Ccedil " +
  "Egrave Eacute Ecirc Euml Igrave Iacute Icirc Iuml ETH Ntilde Ograve Oacute Ocirc Otilde Ouml times Oslash Ugrave " +
  "Uacute Ucirc Uuml Yacute THORN szlig agrave aacute acirc atilde auml aring aelig ccedil egrave eacute ecirc euml " +
  "igrave iacute icirc iuml eth ntilde ograve oacute ocirc otilde ouml divide oslash ugrave uacute ucirc uuml yacute " +
  "thorn yuml";
const OTHERS =
  "amp & lt < gt > quot \" apos ' OElig Œ oelig œ Scaron Š scaron š Yuml Ÿ fnof ƒ circ ˆ tilde ˜ ndash – mdash — lsquo ‘ " +
  "rsquo ’ sbquo ‚ ldquo “ rdquo ” bdquo „ dagger † Dagger ‡ bull • hellip … permil ‰ prime ′ Prime ″ lsaquo ‹ " +
  "rsaquo › oline ‾ frasl ⁄ euro € image ℑ weierp ℘ real ℜ trade ™ alefsym ℵ larr ← uarr ↑ rarr → darr ↓ harr ↔ " +
  "crarr ↵ lArr ⇐ uArr ⇑ rArr ⇒ dArr ⇓ hArr ⇔ forall ∀ part ∂ exist ∃ empty ∅ nabla ∇ isin ∈ notin ∉ ni ∋ prod ∏ " +
  "sum ∑ minus − lowast ∗ radic √ prop ∝ infin ∞ ang ∠ and ∧ or ∨ cap ∩ cup ∪ int ∫ there4 ∴ sim ∼ cong ≅ asymp ≈ " +
  "ne ≠ equiv ≡ le ≤ ge ≥ sub ⊂ sup ⊃ nsub ⊄ sube ⊆ supe ⊇ oplus ⊕ otimes ⊗ perp ⊥ sdot ⋅ lceil ⌈ rceil ⌉ lfloor ⌊ " +
  "rfloor ⌋ loz ◊ spades ♠ clubs ♣ hearts ♥ diams ♦ Alpha Α Beta Β Gamma Γ Delta Δ Epsilon Ε Zeta Ζ Eta Η Theta Θ " +
  "Iota Ι Kappa Κ Lambda Λ Mu Μ Nu Ν Xi Ξ Omicron Ο Pi Π Rho Ρ Sigma Σ Tau Τ Upsilon Υ Phi Φ Chi Χ Psi Ψ Omega Ω " +
  "alpha α beta β gamma γ delta δ epsilon ε zeta ζ eta η theta θ iota ι kappa κ lambda λ mu μ nu ν xi ξ omicron ο pi π " +
  "rho ρ sigmaf ς sigma σ tau τ upsilon υ phi φ chi χ psi ψ omega ω ensp \u2002 emsp \u2003 thinsp \u2009 zwnj \u200c " +
  "zwj \u200d lrm \u200e rlm \u200f";

const NAMED = new Map<string, string>(LATIN.split(" ").map((name, index) => [name, String.fromCharCode(0xa0 + index)]));
const pairs = OTHERS.split(/ (?! )/);
for (let index = 0; index < pairs.length; index += 2) NAMED.set(pairs[index] ?? "", pairs[index + 1] ?? "");

const REFERENCE = /&(?:#x([0-9a-f]{1,6})|#(\d{1,7})|([a-z][a-z0-9]{1,7}));/gi;

/** The references in ``text`` that have a meaning, in their order. */
export function* references(
  text: string,
): Generator<{ readonly start: number; readonly end: number; readonly character: string }, void, undefined> {
  for (const { 0: written, 1: hexadecimal, 2: decimal, 3: name = "", index } of text.matchAll(REFERENCE)) {
    const number = hexadecimal === undefined ? decimal : `0x${hexadecimal}`;
    const character = number === undefined ? NAMED.get(name) : characterOf(Number(number));
    if (character !== undefined) yield { start: index, end: index + written.length, character };
  }
}

function characterOf(code: number): string {
  const isCharacter = code > 0 && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
  return isCharacter ? String.fromCodePoint(code) : "\ufffd";
}

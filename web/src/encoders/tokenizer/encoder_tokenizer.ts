// The tokenizers of encoders: token ids with the place of each token in its text, and pairs of texts in one sequence.
// compiler/runtime/text/tokenizer.py does the same; tests/conformance/encoder_tokenizers.json holds for both.
//
// WordPiece and Unigram are computed here exactly as by the tokenizers library. The package @huggingface/tokenizers
// approximates their normalization. It computes byte-level BPE exactly, so other models use it.

import { BundleError, RequestError, messageOf } from "../../errors.js";
import type { TokenizerEntry } from "../../runtime/manifest.js";
import { requireUnicode } from "../../shared/unicode.js";
import type { Tokenizer } from "../../text/tokenizer.js";
import type { AddedToken } from "./added_tokens.js";
import { AddedTokens } from "./added_tokens.js";
import { alignedText } from "./aligned.js";
import type { UnigramEnds } from "./beginnings.js";
import { Beginnings } from "./beginnings.js";
import type { JoinedPart } from "./joining.js";
import { joiningOf } from "./joining.js";
import type { PieceModel } from "./models.js";
import { Unigram, WordPiece } from "./models.js";
import type { Part } from "./normalizers.js";
import { normalizerOf } from "./normalizers.js";
import { preTokenizerOf } from "./pre_tokenizers.js";
import { StableTokens } from "./stable_tokens.js";
import { bordersOf, byteLevelBorders } from "./word_borders.js";

/** The place of a token: indexes of the text's string; null for special tokens. */
export type Span = readonly [start: number, end: number] | null;

/** The tokens of a text without special tokens. ``spans`` is null if the places are not known. */
export interface Tokens {
  readonly ids: readonly number[];
  readonly spans: readonly Span[] | null;
  /** Whether these are the tokens of a beginning of the text; the number of all of its tokens is not known. */
  readonly isBeginning?: boolean;
}

export interface JoinedTokens extends Tokens {
  /** The type of each token, such as 0 for a query and 1 for a passage. */
  readonly types: readonly number[];
}

interface TokenizerJson {
  readonly added_tokens?: readonly AddedToken[];
  readonly normalizer?: Part | null;
  readonly pre_tokenizer?: Part | null;
  readonly post_processor?: Part | null;
  readonly model?: Part | null;
}

export class EncoderTokenizer {
  readonly #joining: ReturnType<typeof joiningOf>;
  readonly #exact: ExactTokenizer | null;
  readonly #bos: number | undefined;
  /** Whether the places of tokens are without their spaces, and whether a text begins with a space that was added. */
  readonly #trimming: { readonly addsSpace: boolean } | null;
  readonly #beginnings: Beginnings;

  /**
   * ``json`` is the text of tokenizer.json, and ``tokenizer`` the same for generating text. Throws BundleError for a part
   * that is not supported.
   */
  constructor(
    json: string,
    private readonly entry: TokenizerEntry,
    private readonly tokenizer: Tokenizer,
  ) {
    try {
      const parsed = JSON.parse(json) as TokenizerJson;
      const type = parsed.model?.type;
      this.#joining = joiningOf(parsed.post_processor);
      this.#exact =
        type === "WordPiece" || type === "Unigram" ? new ExactTokenizer(parsed, (id) => tokenizer.isControl(id)) : null;
      this.#trimming = trimmingOf(parsed.post_processor);
      this.#beginnings =
        this.#exact === null
          ? new Beginnings(bordersOfBytes(parsed), StableTokens.of(parsed, tokenizer), null)
          : new Beginnings(this.#exact.borders, null, this.#exact.unigram);
    } catch (error) {
      throw new BundleError(
        `${entry.file}: ${messageOf(error)}; use a newer @nearfar/web, or another model`,
        { file: entry.file },
        { cause: error },
      );
    }
    this.#bos = entry.bos_token === null ? undefined : tokenizer.tokenId(entry.bos_token);
  }

  /**
   * The tokens of a text, or of a beginning that has more than ``count``, which are its first tokens. Control tokens that
   * the text spells out are split. Throws RequestError for a text that is not Unicode.
   */
  tokens(text: string, count = Infinity): Tokens {
    requireUnicode(text);
    const found = this.#beginnings.beyond(text, count, (part) => this.#all(part));
    return found === null ? this.#all(text) : { ...found, isBeginning: true };
  }

  /** Whether a text is known to have more than ``count`` tokens. Short texts are not read. */
  exceeds(text: string, count: number): boolean {
    return this.#beginnings.beyond(text, count, (part) => this.#all(part)) !== null;
  }

  #all(text: string): Tokens {
    if (this.#exact !== null) return this.#exact.tokens(text);
    const ids = this.tokenizer.encode(text, false);
    return { ids, spans: this.#byteSpans(text, ids) };
  }

  /** The tokens of one or two texts in one sequence, with the special tokens. */
  joined(first: Tokens, second: Tokens | null): JoinedTokens {
    const parts = second === null ? this.#joining.single : this.#joining.pair;
    const isBeginning = first.isBeginning === true || second?.isBeginning === true;
    const result = { ids: [] as number[], types: [] as number[], spans: [] as Span[], isBeginning };
    for (const { source, type } of parts) {
      const { ids, spans } =
        source === "first" ? first : source === "second" ? (second ?? first) : { ids: [source], spans: null };
      result.ids.push(...ids);
      result.types.push(...ids.map(() => type));
      result.spans.push(...ids.map((_, index) => spans?.[index] ?? null));
    }
    const known = first.spans === null ? null : result.spans;
    const bos = this.#bos;
    const adds = this.entry.add_bos_token;
    if (bos === undefined || adds === null || adds === (result.ids[0] === bos)) return { ...result, spans: known };
    // tokenizer_config.json adds a bos token that tokenizer.json does not, or forbids it.
    const ids = adds ? [bos, ...result.ids] : result.ids.slice(1);
    const spans = known === null ? null : adds ? [null, ...known] : known.slice(1);
    return { ids, types: ids.map(() => 0), spans, isBeginning };
  }

  /** The number of special tokens that `joined` adds. */
  numAdded(isPair: boolean): number {
    const count = (parts: readonly JoinedPart[]): number =>
      parts.filter(({ source }) => typeof source === "number").length;
    const { single, pair } = this.#joining;
    const addsBos = this.entry.add_bos_token === true && this.#bos !== undefined && count(single) === 0;
    return count(isPair ? pair : single) + (addsBos ? 1 : 0);
  }

  /** The part of a text that its first tokens stand for. Throws RequestError if the places of tokens are not known. */
  beginning(text: string, count: number): string {
    const { ids, spans } = this.tokens(text, count);
    if (ids.length <= count) return text;
    const span = (spans ?? this.tokens(text.normalize("NFC"), count).spans)?.[count];
    if (span == null)
      throw new RequestError("This model's tokenizer does not report the places of tokens; shorten the text yourself");
    return (spans === null ? text.normalize("NFC") : text).slice(0, span[0]);
  }

  /** The ids of a template with {name} for each value. Only the template writes control tokens. Throws RequestError. */
  template(template: string, values: Readonly<Record<string, string>>): readonly number[] {
    return this.tokenizer.encodeTemplate(template, values);
  }

  /** The places of byte-level tokens: that of the characters to which their bytes belong. */
  #byteSpans(text: string, ids: readonly number[]): readonly Span[] | null {
    // For each byte of the text, the place of its character.
    const places: (readonly [number, number])[] = [];
    const bytes: number[] = [];
    const encoder = new TextEncoder();
    let end = 0;
    for (const character of text) {
      const place = [end, (end += character.length)] as const;
      for (const byte of encoder.encode(character)) {
        places.push(place);
        bytes.push(byte);
      }
    }
    const tokens = ids.map((id) => this.tokenizer.tokenBytes(id) ?? new Uint8Array());
    const found = tokens.flatMap((token) => [...token]);
    // The pre-tokenizer may add a space in front.
    const added = found.length === bytes.length + 1 && found[0] === 0x20 ? 1 : 0;
    if (found.length !== bytes.length + added || bytes.some((byte, index) => byte !== found[index + added]))
      return null;
    let from = -added;
    return tokens.map(({ length }, index): Span => {
      const [first, last] = [places[Math.max(from, 0)], places[from + length - 1]];
      from += length;
      if (first === undefined || last === undefined) return null;
      let [start, stop] = [first[0], last[1]];
      if (this.#trimming !== null) {
        const name = this.tokenizer.tokenName(ids[index] ?? -1);
        const trailing = /Ġ*$/.exec(name)?.[0].length ?? 0;
        let leading = /^Ġ*/.exec(name)?.[0].length ?? 0;
        if (leading > 0 && start === 0 && this.#trimming.addsSpace) leading--;
        start = Math.min(start + leading, stop);
        if (stop >= trailing) stop = Math.max(stop - trailing, start);
      }
      return [start, stop];
    });
  }
}

/** Other normalizers and patterns may join what is on the two sides of a space. */
function bordersOfBytes({ normalizer, pre_tokenizer: part, added_tokens: added = [] }: TokenizerJson): RegExp | null {
  const divides = part?.type === "ByteLevel" && part.use_regex !== false && (normalizer?.type ?? "NFC") === "NFC";
  return divides ? byteLevelBorders(added.map(({ content }) => content)) : null;
}

/** Words that are kept with their pieces. */
const CACHED_WORDS = 10_000;

class ExactTokenizer {
  readonly borders: RegExp | null;
  readonly unigram: UnigramEnds | null;
  readonly #added: AddedTokens;
  readonly #divide: ReturnType<typeof preTokenizerOf>;
  readonly #model: PieceModel;
  readonly #cache = new Map<string, ReturnType<PieceModel["pieces"]>>();

  constructor(
    { added_tokens: added = [], normalizer, pre_tokenizer, model }: TokenizerJson,
    /** Whether an id is that of a control token, which text cannot become. */
    private readonly isControl: (id: number) => boolean,
  ) {
    const normalize = normalizerOf(normalizer);
    this.#added = new AddedTokens(added, normalize);
    this.#divide = preTokenizerOf(pre_tokenizer);
    const words = (text: string): readonly string[] =>
      this.#divide(normalize(alignedText(text))).map(({ chars }) => chars.join(""));
    this.borders = bordersOf(
      (text) => words(text).filter((word) => word !== ""),
      added.map(({ content }) => content),
    );
    const part = model ?? { type: "" };
    const normalized = (text: string): string => normalize(alignedText(text)).chars.join("");
    const unigram = part.type === "WordPiece" ? null : new Unigram(part);
    this.#model = unigram ?? new WordPiece(part);
    this.unigram =
      unigram === null || this.borders === null
        ? null
        : {
            longest: unigram.longest,
            isPlain: (text) =>
              !/[\s▁\p{M}]/u.test(text) && [text, ...new Set(text)].every((each) => normalized(each).endsWith(each)),
            ids: (text) => this.tokens(text).ids,
          };
  }

  tokens(text: string): Tokens {
    const found = this.#encode(text, () => false);
    if (!found.ids.some((id) => this.isControl(id))) return found;
    const split = this.#encode(text, ({ id, special }) => special === true || this.isControl(id));
    if (split.ids.some((id) => this.isControl(id))) {
      throw new RequestError("The text spells a control token that this model's tokenizer cannot split; remove it", {
        code: "invalid_text",
      });
    }
    return split;
  }

  #encode(text: string, skips: (token: AddedToken) => boolean): { ids: number[]; spans: Span[] } {
    const ids: number[] = [];
    const spans: Span[] = [];
    for (const section of this.#added.sections(text, skips)) {
      if (section.token !== null) {
        ids.push(section.token.id);
        spans.push([section.starts[0] ?? 0, section.ends.at(-1) ?? 0]);
        continue;
      }
      for (const { chars, starts, ends } of this.#divide(section)) {
        if (chars.length === 0) continue;
        for (const { id, from, to } of this.#pieces(chars)) {
          ids.push(id);
          spans.push([starts[from] ?? 0, ends[to - 1] ?? 0]);
        }
      }
    }
    return { ids, spans };
  }

  #pieces(chars: readonly string[]): ReturnType<PieceModel["pieces"]> {
    const word = chars.join("");
    let pieces = this.#cache.get(word);
    if (pieces === undefined) {
      if (this.#cache.size === CACHED_WORDS) this.#cache.clear();
      this.#cache.set(word, (pieces = this.#model.pieces(chars)));
    }
    return pieces;
  }
}

function trimmingOf(part: Part | null | undefined): { readonly addsSpace: boolean } | null {
  if (part == null) return null;
  if (part.type === "Sequence")
    return (part.processors as readonly Part[]).map(trimmingOf).find((each) => each !== null) ?? null;
  const trims = (part.type === "ByteLevel" || part.type === "RobertaProcessing") && part.trim_offsets !== false;
  return trims ? { addsSpace: part.add_prefix_space !== false } : null;
}

// The tokenizer of a bundle's tokenizer.json: it converts text and chats to token ids and back with Hugging Face's own
// package, and knows the bytes of each token.

import { Tokenizer as Backend } from "@huggingface/tokenizers";

import { BundleError, RequestError, messageOf } from "../errors.js";
import type { TokenizerEntry } from "../runtime/manifest.js";
import type { RenderedMessage, RenderOptions } from "./chat_template.js";
import { ChatTemplate } from "./chat_template.js";
import { ControlTokens, SENTINEL, privateSpelling, sentinelRefused, spellsMarker } from "./control_tokens.js";
import { reasoningOf } from "./reasoning.js";
import type { ThinkingModel } from "./thinking.js";
import type { ToolFormat } from "./tools.js";

// The name of a single byte's token in byte-fallback tokenizers.
const BYTE_TOKEN = /^<0x([0-9A-Fa-f]{2})>$/;

// Python's tokenizers never removes spaces. Only transformers does so, for old models.
const CONFIG = { clean_up_tokenization_spaces: false };

/** The encoding of bytes in the names of a tokenizer's tokens. */
type ByteSpelling = "byte_level" | "byte_fallback";

interface TokenizerJson {
  readonly added_tokens?: readonly { readonly content: string }[];
  readonly post_processor?: unknown;
  readonly model?: { readonly unk_token?: string | null };
}

/**
 * Control tokens are the special added tokens, the named ones such as eos, and the markers that the chat template
 * spells out. Only the chat template writes them; text never becomes one unless the caller requests it.
 */
export class Tokenizer {
  readonly #controls: ControlTokens;
  readonly #forgeable: ReadonlySet<number>;
  #splitting: Backend | undefined;
  readonly #backend: Backend;
  readonly #chatTemplate: ChatTemplate | null;
  readonly #specialIds: ReadonlySet<number>;
  readonly #bosTokenId: number | undefined;
  readonly #addedIds: ReadonlySet<number>;
  readonly #byteSpelling: ByteSpelling;
  /** The model's form of reasoning, and its control by the chat template. */
  readonly thinking: ThinkingModel;

  /** ``json`` is the text of tokenizer.json. Throws BundleError if it or the chat template cannot be loaded. */
  constructor(
    private readonly json: string,
    private readonly entry: TokenizerEntry,
  ) {
    let unkToken: string | null | undefined;
    try {
      const parsed = JSON.parse(json) as TokenizerJson;
      this.#backend = new Backend(parsed, CONFIG);
      this.#byteSpelling = byteSpelling(parsed);
      unkToken = parsed.model?.unk_token;
    } catch (error) {
      throw new BundleError(
        `${entry.file}: cannot be loaded: ${messageOf(error)}; compile the bundle again`,
        { file: entry.file },
        { cause: error },
      );
    }
    const added = [...this.#backend.get_added_tokens_decoder()];
    const named: readonly unknown[] = Object.values(specialTokens(entry));
    const controls = added.filter(
      ([, { special, content }]) =>
        special || named.includes(content) || spellsMarker(entry.chat_template ?? "", content),
    );
    this.#controls = new ControlTokens(
      added.map(([, { content }]) => content),
      controls.map(([, { content }]) => content),
    );
    // A model writes its unknown token for text that it cannot encode.
    const unknown = [entry.unk_token, unkToken];
    this.#forgeable = new Set(controls.filter(([, { content }]) => !unknown.includes(content)).map(([id]) => id));
    this.#addedIds = new Set(added.map(([id]) => id));
    // Tokens that mark tool calls are part of an answer's text even if they are special.
    const silent = added.filter(([, { special, content }]) => special && !entry.tools?.tokens.includes(content));
    this.#specialIds = new Set(silent.map(([id]) => id));
    this.#bosTokenId = entry.bos_token === null ? undefined : this.#backend.token_to_id(entry.bos_token);
    this.#chatTemplate =
      entry.chat_template === null
        ? null
        : new ChatTemplate(entry.chat_template, entry.chat_tree, specialTokens(entry), entry.tools);
    const template = entry.chat_template ?? "";
    this.thinking = { reasoning: reasoningOf(template, this), canSwitch: template.includes("enable_thinking") };
  }

  /** This model's format of tool calls; null if it cannot call tools. */
  get toolFormat(): ToolFormat | null {
    return this.entry.tools;
  }

  /**
   * The token ids of a text. Control tokens that it spells out are split into the tokens of their text, or without
   * ``splitSpecialTokens`` become single ones. Throws RequestError for a text that cannot be split.
   */
  encode(text: string, addSpecialTokens = true, splitSpecialTokens = true): readonly number[] {
    const options = { add_special_tokens: addSpecialTokens };
    const bos = this.#bosTokenId;
    const addBos = this.entry.add_bos_token;
    let { ids } = this.#backend.encode(text, options);
    let startsWithBos =
      addBos === false && ids[0] === bos && this.#backend.encode(text, { add_special_tokens: false }).ids[0] === bos;
    // The tokens that the tokenizer adds to every text.
    const added = this.forgeable(this.#backend.encode("", options).ids).length;
    if (splitSpecialTokens && this.forgeable(ids).length !== added) {
      if (text.includes(SENTINEL)) throw sentinelRefused();
      ({ ids } = this.splitting().encode(text, options));
      if (this.forgeable(ids).length !== added) throw notSplit();
      startsWithBos = false;
    }
    if (!addSpecialTokens || bos === undefined || addBos === null) return ids;
    if (addBos) return ids[0] === bos ? ids : [bos, ...ids];
    // tokenizer.json adds a bos token, but add_bos_token forbids it. The latter has precedence, unless the text itself
    // starts with one.
    return ids[0] === bos && !startsWithBos ? ids.slice(1) : ids;
  }

  /**
   * The token ids of a chat's prompt. The template writes all special tokens itself, so none are added; those that
   * messages and tools spell out are split. Throws RequestError.
   */
  encodeChat(messages: readonly RenderedMessage[], options: RenderOptions = {}): readonly number[] {
    if (this.#chatTemplate === null) {
      throw new RequestError(
        "This model has no chat template, so it cannot chat; give it plain text to continue, with raw: true",
      );
    }
    const marked = this.#chatTemplate.render(messages, options, this.#controls);
    return this.#encodeMarked(options.pictures?.(marked, this.#controls) ?? marked);
  }

  /**
   * The token ids of a template with {name} for each value. Only the template writes control tokens; those that values
   * spell out are split. Throws RequestError.
   */
  encodeTemplate(template: string, values: Readonly<Record<string, string>>): readonly number[] {
    const placeholder = new RegExp(`\\{(${Object.keys(values).join("|")})\\}`, "gu");
    return this.#encodeMarked(
      template.replace(placeholder, (_, name: string) => this.#controls.mark(values[name] ?? "")),
    );
  }

  #encodeMarked(marked: string): readonly number[] {
    const text = marked.replaceAll(SENTINEL, "");
    const own = this.#controls.find(marked);
    if (String(own) === String(this.#controls.find(text))) return this.encode(text, false, false);
    const { controls } = this.#controls;
    const parts: string[] = [];
    let end = 0;
    for (const [start, content] of own) {
      parts.push(text.slice(end, start), privateSpelling(controls.indexOf(content)));
      end = start + content.length;
    }
    const { ids } = this.splitting().encode(parts.join("") + text.slice(end), { add_special_tokens: false });
    const expected = own.map(([, content]) => this.#backend.token_to_id(content) ?? -1);
    if (String(this.forgeable(ids)) !== String(this.forgeable(expected))) throw notSplit();
    return ids;
  }

  /**
   * The text of token ids, by default without special tokens. Ids without a token, which padded vocabularies contain,
   * have no text.
   */
  decode(ids: readonly number[], skipSpecialTokens = true): string {
    const known = ids.filter((id) => !this.#isSilent(id, skipSpecialTokens));
    return known.length === 0 ? "" : this.#backend.decode(known);
  }

  /** Whether an id is a control token, which no text is encoded as. The unknown token is not one. */
  isControl(id: number): boolean {
    return this.#forgeable.has(id);
  }

  tokenId(token: string): number | undefined {
    return this.#backend.token_to_id(token);
  }

  /** Whether an id is that of an added token, which is found in the text itself. */
  isAdded(id: number): boolean {
    return this.#addedIds.has(id);
  }

  /** The name of a token, "" for ids without one. */
  tokenName(id: number): string {
    return this.#backend.id_to_token(id) ?? "";
  }

  /** The words of a normalized text, as the model spells them. ``isFirst``: no added token is in front of it. */
  words(text: string, isFirst: boolean): readonly string[] {
    const options = { section_index: isFirst ? 0 : 1 };
    return this.#backend.pre_tokenizer === null ? [text] : this.#backend.pre_tokenizer.pre_tokenize(text, options);
  }

  /** The names of the tokens of one such word. */
  pieces(word: string): readonly string[] {
    return this.#backend.model?.encode([word]) ?? [];
  }

  private forgeable(ids: readonly number[]): readonly number[] {
    return ids.filter((id) => this.#forgeable.has(id));
  }

  /** Encodes control tokens as plain text, and their private spellings as the tokens. */
  private splitting(): Backend {
    if (this.#splitting !== undefined) return this.#splitting;
    const parsed = JSON.parse(this.json) as TokenizerJson;
    const spelling = new Map<unknown, string>(
      this.#controls.controls.map((content, index) => [content, privateSpelling(index)]),
    );
    const spelled = (_: string, value: unknown): unknown => spelling.get(value) ?? value;
    const { added_tokens = [], post_processor = null } = parsed;
    const changed = JSON.parse(JSON.stringify({ added_tokens, post_processor }), spelled) as object;
    return (this.#splitting = new Backend({ ...parsed, ...changed }, CONFIG));
  }

  #isSilent(id: number, skipSpecialTokens: boolean): boolean {
    return (skipSpecialTokens && this.#specialIds.has(id)) || this.#backend.id_to_token(id) === undefined;
  }

  /** The bytes that a token adds to the text that `decode` returns. */
  writtenBytes(id: number, skipSpecialTokens: boolean): Uint8Array {
    return (this.#isSilent(id, skipSpecialTokens) ? null : this.tokenBytes(id)) ?? new Uint8Array();
  }

  /** The bytes of a token, special or not; null for ids without a token. */
  tokenBytes(id: number): Uint8Array | null {
    const name = this.#backend.id_to_token(id);
    return name === undefined ? null : tokenBytes(name, this.#byteSpelling, this.#addedIds.has(id));
  }

  /** Whether the token is a single byte, so that its character depends on its neighbours. */
  isByteToken(id: number): boolean {
    return BYTE_TOKEN.test(this.#backend.id_to_token(id) ?? "");
  }
}

function notSplit(): RequestError {
  return new RequestError("The text spells a control token that this model's tokenizer cannot split; remove it", {
    code: "invalid_text",
  });
}

function specialTokens({
  bos_token,
  eos_token,
  pad_token,
  unk_token,
}: TokenizerEntry): Readonly<Record<string, string>> {
  const named = Object.entries({ bos_token, eos_token, pad_token, unk_token });
  return Object.fromEntries(named.filter((pair): pair is [string, string] => pair[1] !== null));
}

/** Throws nothing: a tokenizer.json without a ByteLevel decoder spells characters as they are, with "▁" for a space. */
function byteSpelling(tokenizerJson: unknown): ByteSpelling {
  const { decoder } = tokenizerJson as { decoder?: { type?: string; decoders?: readonly { type?: string }[] } | null };
  return [decoder, ...(decoder?.decoders ?? [])].some((part) => part?.type === "ByteLevel")
    ? "byte_level"
    : "byte_fallback";
}

/** ``added``: the token is matched in the text itself, so its name is its text. */
function tokenBytes(name: string, spelling: ByteSpelling, added: boolean): Uint8Array {
  if (added) return new TextEncoder().encode(name);
  if (spelling === "byte_fallback") {
    const byte = BYTE_TOKEN.exec(name)?.[1];
    return byte === undefined ? new TextEncoder().encode(name.replaceAll("▁", " ")) : Uint8Array.of(parseInt(byte, 16));
  }
  return Uint8Array.from(Array.from(name).flatMap(byteOf));
}

// GPT-2 writes a byte that is not a printable character of Latin-1 as the next free character from U+0100 on.
function byteOf(character: string): readonly number[] {
  const code = character.codePointAt(0) ?? 0;
  if (isPrintable(code)) return [code];
  if (code >= 0x100 && code < 0x100 + HIDDEN.length) return [HIDDEN[code - 0x100] ?? 0];
  return [...new TextEncoder().encode(character)];
}

const isPrintable = (byte: number): boolean =>
  (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || (byte >= 174 && byte <= 255);

const HIDDEN: readonly number[] = Array.from({ length: 256 }, (_, byte) => byte).filter((byte) => !isPrintable(byte));

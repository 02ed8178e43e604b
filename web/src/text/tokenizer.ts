// The tokenizer: text and chats to token ids and back. A bundle's tokenizer.json flows in; Hugging Face's own package does the work on it.

import { Tokenizer as Backend } from "@huggingface/tokenizers";

import { BundleError, RequestError, messageOf } from "../errors.js";
import type { TokenizerEntry } from "../runtime/manifest.js";
import type { Message, RenderOptions } from "./chat_template.js";
import { ChatTemplate } from "./chat_template.js";
import type { ByteSpelling } from "./token_bytes.js";
import { byteSpelling, tokenBytes } from "./token_bytes.js";
import type { ToolFormat } from "./tools.js";

// How byte-fallback tokenizers name the token of a single byte.
const BYTE_TOKEN = /^<0x[0-9A-Fa-f]{2}>$/;

export class Tokenizer {
  readonly #backend: Backend;
  readonly #chatTemplate: ChatTemplate | null;
  readonly #specialIds: ReadonlySet<number>;
  readonly #bosTokenId: number | undefined;
  readonly #addedIds: ReadonlySet<number>;
  readonly #byteSpelling: ByteSpelling;

  /** ``json`` is the text of tokenizer.json. Throws BundleError where it, or the chat template, cannot be loaded. */
  constructor(
    json: string,
    private readonly entry: TokenizerEntry,
  ) {
    try {
      const parsed = JSON.parse(json) as object;
      // Python's tokenizers never cleans spaces up; transformers does so above them, for old models only.
      this.#backend = new Backend(parsed, { clean_up_tokenization_spaces: false });
      this.#byteSpelling = byteSpelling(parsed);
    } catch (error) {
      throw new BundleError(`${entry.file}: cannot be loaded: ${messageOf(error)}; compile the bundle again`, { file: entry.file }, { cause: error });
    }
    const added = [...this.#backend.get_added_tokens_decoder()];
    this.#addedIds = new Set(added.map(([id]) => id));
    this.#specialIds = new Set(added.filter(([, token]) => token.special).map(([id]) => id));
    this.#bosTokenId = entry.bos_token === null ? undefined : this.#backend.token_to_id(entry.bos_token);
    this.#chatTemplate = entry.chat_template === null ? null : new ChatTemplate(entry.chat_template, specialTokens(entry));
  }

  /** How this model writes calls of tools; null where it cannot call any. */
  get toolFormat(): ToolFormat | null {
    return this.#chatTemplate?.toolFormat ?? null;
  }

  /** The token ids of a text. Special tokens that the text spells out become single tokens in either case. */
  encode(text: string, addSpecialTokens = true): readonly number[] {
    const { ids } = this.#backend.encode(text, { add_special_tokens: addSpecialTokens });
    const bos = this.#bosTokenId;
    const addBos = this.entry.add_bos_token;
    if (!addSpecialTokens || bos === undefined || addBos === null) return ids;
    if (addBos) return ids[0] === bos ? ids : [bos, ...ids];
    // tokenizer.json puts a bos token first, add_bos_token forbids it: the latter wins, unless the text itself starts so.
    return ids[0] === bos && this.encode(text, false)[0] !== bos ? ids.slice(1) : ids;
  }

  /** The token ids of a chat's prompt. The template writes all special tokens itself, so none are added. Throws RequestError. */
  encodeChat(messages: readonly Message[], options: RenderOptions = {}): readonly number[] {
    if (this.#chatTemplate === null) {
      throw new RequestError("This model has no chat template, so it cannot chat; give it plain text to continue, with raw: true");
    }
    return this.encode(this.#chatTemplate.render(messages, options), false);
  }

  /** The text of token ids, without special tokens. Ids without a token, which a padded vocabulary has, give no text. */
  decode(ids: readonly number[]): string {
    const known = ids.filter((id) => !this.#specialIds.has(id) && this.#backend.id_to_token(id) !== undefined);
    return known.length === 0 ? "" : this.#backend.decode(known);
  }

  /** The bytes that a token stands for, special or not; null for ids without a token. */
  tokenBytes(id: number): Uint8Array | null {
    const name = this.#backend.id_to_token(id);
    return name === undefined ? null : tokenBytes(name, this.#byteSpelling, this.#addedIds.has(id));
  }

  /** Whether the token stands for one byte, so that only its neighbours tell which character it belongs to. */
  isByteToken(id: number): boolean {
    return BYTE_TOKEN.test(this.#backend.id_to_token(id) ?? "");
  }
}

function specialTokens({ bos_token, eos_token, pad_token, unk_token }: TokenizerEntry): Readonly<Record<string, string>> {
  const named = Object.entries({ bos_token, eos_token, pad_token, unk_token });
  return Object.fromEntries(named.filter((pair): pair is [string, string] => pair[1] !== null));
}

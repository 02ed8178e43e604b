// Reads the texts of a request: token ids, shortened if the request allows it. server_fallback/text/encoder_texts.py does
// the same for the server.

import type { TruncationParams } from "../api/encoder_types.js";
import { shown } from "../api/params.js";
import type { Check } from "../api/params.js";
import { check, signal as signalCheck } from "../api/params.js";
import type { TextInput } from "../api/requests.js";
import { RequestError } from "../errors.js";
import type { ClassifierSpec } from "../runtime/manifest.js";
import { requireUnicode } from "../shared/unicode.js";
import type { EncoderModel } from "./encoder_model.js";
import type { JoinedTokens } from "./tokenizer/encoder_tokenizer.js";

/** The most texts of a request. */
export const MAX_TEXTS = 10_000;
/** How long texts are read before other work of the thread runs. */
const SLICE_MS = 8;

export const TRUNCATION: Readonly<Record<keyof TruncationParams, Check>> = {
  truncate: "boolean",
  truncate_prompt_tokens: check(
    "an integer of at least 1, or -1",
    (value) => Number.isInteger(value) && (value === -1 || (value as number) >= 1),
  ),
  model: "string",
  user: "string",
  signal: signalCheck,
};

export type ReadText = JoinedTokens;

export class TextReader {
  private constructor(
    private readonly model: EncoderModel,
    /** Longer texts are shortened to this number of tokens; null makes texts beyond the context an error. */
    private readonly maxTokens: number | null,
    private readonly signal: AbortSignal,
  ) {}

  /** Throws RequestError for a limit beyond the context. */
  static of(
    model: EncoderModel,
    { truncate, truncate_prompt_tokens: limit }: TruncationParams,
    signal: AbortSignal,
  ): TextReader {
    if (limit != null && truncate === false)
      throw new RequestError("truncate is false and truncate_prompt_tokens is given; use one of them", {
        param: "truncate",
      });
    if (limit != null && limit > model.context) {
      throw new RequestError(
        `truncate_prompt_tokens is ${limit}, more than this model's context of ${model.context}; use at most that, or -1`,
        { param: "truncate_prompt_tokens" },
      );
    }
    const shortens = limit != null || truncate === true;
    return new TextReader(model, shortens ? (limit == null || limit === -1 ? model.context : limit) : null, signal);
  }

  /**
   * One text or list of token ids, or several of either. ``prefix`` precedes each text, not token ids. Throws
   * RequestError for the first that is empty, too long, not Unicode or has an unknown id, and the signal's reason.
   */
  async texts(given: TextInput, param: string, prefix = ""): Promise<readonly ReadText[]> {
    const parts = partsOf(given, param);
    requireFew(parts.length, param);
    const name = (index: number): string => (parts.length === 1 ? param : `${param}[${index}]`);
    return this.#each(parts, (part, index) =>
      typeof part === "string" ? this.#text(part, name(index), prefix) : this.#ids(part, name(index)),
    );
  }

  /** A reader that also shortens texts to ``limit`` tokens. */
  limited(limit: number | null | undefined): TextReader {
    if (limit == null) return this;
    return new TextReader(this.model, Math.min(limit, this.maxTokens ?? this.model.context), this.signal);
  }

  /**
   * Each pair as one sequence, in the form of the classifier. If the request shortens texts, or the second ones to
   * ``maxSecond`` tokens, only the second ones are, or with ``shortensFirst`` the first ones. ``nameOf`` is the parameter
   * of a pair's text that may be too long, and ``firstName`` that of its first text.
   */
  async pairs(
    pairs: readonly (readonly [first: string, second: string])[],
    nameOf: (index: number) => string,
    firstName: (index: number) => string,
    maxSecond: number | null | undefined,
    { template, instruction }: ClassifierSpec,
    { shortensFirst = false }: { readonly shortensFirst?: boolean } = {},
  ): Promise<readonly ReadText[]> {
    const { context } = this.model;
    const limit = this.maxTokens ?? (maxSecond == null ? Infinity : context);
    return this.#each(pairs, ([first, second], index) => {
      const name = nameOf(index);
      if (second === "") throw isEmpty(name);
      requireUnicode(first, firstName(index));
      const read = named(name, () =>
        template === null
          ? this.#joined(first, second, limit, maxSecond, shortensFirst)
          : this.#rendered(
              template,
              { instruction: instruction ?? "", query: first, document: second },
              limit,
              maxSecond,
            ),
      );
      return this.#checked(read, name);
    });
  }

  #joined(
    first: string,
    second: string,
    limit: number,
    maxSecond: number | null | undefined,
    shortensFirst: boolean,
  ): ReadText {
    const { tokenizer } = this.model;
    const most = Math.min(limit, this.model.context);
    const both = [tokenizer.tokens(first, most), tokenizer.tokens(second, most)] as const;
    const [whole, cut] = shortensFirst ? [both[1], both[0]] : both;
    const room = limit - tokenizer.numAdded(true) - whole.ids.length;
    if (room < 1) {
      const [kept, other] = shortensFirst ? ["hypothesis", "text"] : ["query", "document"];
      throw new RequestError(
        `This model's maximum context length is ${limit} tokens. However, the ${kept} has ` +
          `${whole.isBeginning === true ? "at least " : ""}${whole.ids.length} tokens, ` +
          `which leaves none for a ${other}; shorten it`,
        { code: "context_length_exceeded" },
      );
    }
    const shortened = { ...cut, ids: cut.ids.slice(0, Math.min(room, maxSecond ?? Infinity)), spans: null };
    const joined = shortensFirst ? tokenizer.joined(shortened, whole) : tokenizer.joined(whole, shortened);
    return { ...joined, spans: null };
  }

  /** A pair in the classifier's template. Only the template writes control tokens. */
  #rendered(
    template: string,
    values: Readonly<Record<"instruction" | "query" | "document", string>>,
    limit: number,
    maxDocument: number | null | undefined,
  ): ReadText {
    const { tokenizer } = this.model;
    let document = maxDocument == null ? values.document : tokenizer.beginning(values.document, maxDocument);
    const encode = (text: string): readonly number[] => tokenizer.template(template, { ...values, document: text });
    // Texts that cannot fit are not encoded as a whole.
    const most = Math.min(limit, this.model.context);
    const leavesNone = (numTokens: string): RequestError =>
      new RequestError(
        `This model's maximum context length is ${most} tokens. However, the query and its template have ` +
          `${numTokens} tokens, which leaves none for a document; shorten it`,
        { code: "context_length_exceeded" },
      );
    if (tokenizer.exceeds(values.query, most)) throw leavesNone(`more than ${most}`);
    if (tokenizer.exceeds(document, most)) {
      if (limit === Infinity) return { ...tokenizer.tokens(document, most), types: [] };
      document = tokenizer.beginning(document, most);
    }
    let ids = encode(document);
    if (ids.length > limit) {
      const around = encode("").length;
      // The tokens at the document's end depend on the template's text.
      for (let room = limit - around; ids.length > limit && room > 0; room--)
        ids = encode((document = tokenizer.beginning(document, room)));
      if (ids.length > limit) throw leavesNone(String(around));
    }
    return { ids, types: ids.map(() => 0), spans: null };
  }

  #text(text: string, name: string, prefix: string): ReadText {
    if (text === "") throw isEmpty(name);
    const { tokenizer } = this.model;
    const read = named(name, () => {
      const tokens = tokenizer.tokens(prefix + text, this.maxTokens ?? this.model.context);
      const room = Math.max(0, (this.maxTokens ?? Infinity) - tokenizer.numAdded(false));
      const [ids, spans] = [tokens.ids.slice(0, room), tokens.spans?.slice(0, room) ?? null];
      return tokenizer.joined({ ...tokens, ids, spans }, null);
    });
    const inText = (index: number): number => Math.max(0, index - prefix.length);
    const spans = read.spans?.map((span) => span && ([inText(span[0]), inText(span[1])] as const)) ?? null;
    return this.#checked({ ...read, spans }, name);
  }

  #ids(ids: readonly number[], name: string): ReadText {
    const shortened = this.maxTokens === null ? ids : ids.slice(0, this.maxTokens);
    return this.#checked({ ids: shortened, types: shortened.map(() => 0), spans: null }, name);
  }

  #checked(read: ReadText, name: string): ReadText {
    const { context, vocabSize } = this.model;
    const { ids, isBeginning } = read;
    const numTokens = (isBeginning === true ? "at least " : "") + String(ids.length);
    if (ids.length === 0) throw new RequestError(`${name} is empty; give it at least one token`, { param: name });
    if (ids.length > context) {
      throw new RequestError(
        `This model's maximum context length is ${context} tokens. However, ${name} has ${numTokens} tokens; ` +
          "shorten it, or set truncate to true",
        { param: name, code: "context_length_exceeded" },
      );
    }
    const wrong = ids.find((id) => !Number.isInteger(id) || id < 0 || id >= vocabSize);
    if (wrong !== undefined) {
      throw new RequestError(`${name} has the token ${wrong}; token ids of this model are 0 to ${vocabSize - 1}`, {
        param: name,
      });
    }
    return read;
  }

  /** Applies ``read`` to each item, and lets other work of the thread run in between. */
  async #each<T>(items: readonly T[], read: (item: T, index: number) => ReadText): Promise<readonly ReadText[]> {
    const found: ReadText[] = [];
    this.signal.throwIfAborted();
    let start = performance.now();
    for (const [index, item] of items.entries()) {
      if (performance.now() - start > SLICE_MS) {
        await new Promise((resolve) => setTimeout(resolve));
        this.signal.throwIfAborted();
        start = performance.now();
      }
      found.push(read(item, index));
    }
    return found;
  }
}

export function usageOf(texts: readonly ReadText[]): { prompt_tokens: number; total_tokens: number } {
  const tokens = texts.reduce((sum, { ids }) => sum + ids.length, 0);
  return { prompt_tokens: tokens, total_tokens: tokens };
}

/** Throws RequestError for a text without a character. */
export function requireText(text: string, name: string): void {
  if (text === "") throw isEmpty(name);
}

function partsOf(given: TextInput, param: string): readonly (string | readonly number[])[] {
  if (typeof given === "string") return [given];
  const isId = (part: unknown): part is number => Number.isInteger(part);
  const isIds = (part: unknown): part is readonly number[] => Array.isArray(part) && part.every(isId);
  if (Array.isArray(given) && given.length > 0) {
    const parts: readonly unknown[] = given;
    if (parts.every(isId)) return [parts];
    if (parts.every((part) => typeof part === "string") || parts.every(isIds)) return parts;
  }
  throw new RequestError(
    `${param} is ${shown(given)}, it must be a string, strings, token ids, or lists of token ids`,
    { param },
  );
}

export function requireFew(count: number, param: string): void {
  if (count > MAX_TEXTS) {
    throw new RequestError(`${count} texts; at most ${MAX_TEXTS} are supported in a request; send several requests`, {
      param,
    });
  }
}

function isEmpty(name: string): RequestError {
  return new RequestError(`${name} is empty; give at least one character`, { param: name });
}

/** Adds the parameter's name to an error of the tokenizer. */
function named<T>(name: string, read: () => T): T {
  try {
    return read();
  } catch (error) {
    if (!(error instanceof RequestError)) throw error;
    throw new RequestError(error.message, { param: name, ...error.details });
  }
}

// Separates a model's reasoning from the answer that follows it. The markers (<think>) are single tokens of the
// vocabulary, and the parser receives them by id: an answer that spells a marker with other tokens is not cut.
// compiler/runtime/text/reasoning.py does the same, and tests/conformance/reasoning.json tests both alike.

/** Where an answer is. "start": nothing but white space has come, so reasoning may begin. */
export type State = "start" | "reasoning" | "content";

/**
 * The markers, and what models and templates write around them. ``label`` follows the opening marker and is not part of
 * the reasoning.
 */
export interface Dialect {
  readonly open: string;
  readonly close: string;
  readonly label: string;
  readonly beforeClose: string;
  readonly afterClose: string;
}

// Qwen 3, DeepSeek R1, SmolLM3 and others; Gemma 4; Magistral and Ministral 3.
const DIALECTS: readonly Dialect[] = [
  { open: "<think>", close: "</think>", label: "\n", beforeClose: "\n", afterClose: "\n\n" },
  { open: "<|channel>", close: "<channel|>", label: "thought\n", beforeClose: "\n", afterClose: "" },
  { open: "[THINK]", close: "[/THINK]", label: "", beforeClose: "", afterClose: "" },
];

/** The interface of reasoning to a tokenizer. */
export interface ReasoningCodec {
  tokenId(token: string): number | undefined;
  encode(text: string, addSpecialTokens: boolean): readonly number[];
  decode(ids: readonly number[]): string;
}

/** One model's form of reasoning, in token ids. */
export interface Reasoning {
  readonly dialect: Dialect;
  readonly openId: number;
  readonly closeId: number;
  /** The end of the reasoning: the closing marker and the line breaks around it. */
  readonly endingIds: readonly number[];
  /** Whether a token is white space. */
  isBlank(id: number): boolean;
  /** Where an answer to a prompt begins. A template may open the reasoning, or close it again if it is switched off. */
  stateAfter(promptIds: readonly number[]): State;
  /**
   * The ids of an answer that the client began, after a prompt that ends in ``state``, and the state after them.
   * ``content`` may hold the reasoning itself, between its markers.
   */
  begun(state: State, content: string, reasoning?: string): { readonly ids: readonly number[]; readonly state: State };
}

/**
 * The dialect whose markers are tokens and whose closing marker the chat template contains; null for a model that does
 * not reason.
 */
export function reasoningOf(template: string, codec: ReasoningCodec): Reasoning | null {
  for (const dialect of DIALECTS) {
    const { open, close } = dialect;
    const openId = codec.tokenId(open);
    const closeId = codec.tokenId(close);
    if (openId === undefined || closeId === undefined || !template.includes(close)) continue;
    const encode = (text: string): readonly number[] => codec.encode(text, false);
    const isBlank = (id: number): boolean => /^\s+$/.test(codec.decode([id]));
    const endingIds = [...encode(dialect.beforeClose), closeId, ...encode(dialect.afterClose)];
    // Whether text can spell the markers; special tokens cannot be spelled.
    const isSpelled = String(encode(close)) === String(closeId);
    return {
      dialect,
      openId,
      closeId,
      endingIds,
      isBlank,
      stateAfter: (promptIds) => {
        for (let at = promptIds.length - 1; at >= 0; at--) {
          const id = promptIds[at] ?? -1;
          if (id === closeId || id === openId) return id === closeId ? "content" : "reasoning";
          if (isBlank(id)) continue;
          const rest = codec.decode(promptIds.slice(at)).trim();
          if (rest === "" || !dialect.label.trim().endsWith(rest)) return "start";
        }
        return "start";
      },
      begun: (state, content, reasoning = "") => {
        const isClosed = isSpelled && content.includes(close);
        const hasReasoning = reasoning === "" && (isClosed || (isSpelled && content.trimStart().startsWith(open)));
        const ids = reasoning === "" || state === "reasoning" ? [] : [openId, ...encode(dialect.label)];
        ids.push(...encode(reasoning));
        if (reasoning !== "") state = "reasoning";
        if (content === "") return { ids, state };
        if (state === "reasoning" && !hasReasoning) ids.push(...endingIds);
        ids.push(...encode(content));
        return { ids, state: hasReasoning && !isClosed ? "reasoning" : "content" };
      },
    };
  }
  return null;
}

export type Parts = readonly [reasoning: string, content: string];

/**
 * One answer's text, cut at the markers' tokens. Line breaks at both ends of the reasoning and before the content are
 * left out, and the result does not depend on how the text comes in pieces. An answer that never closes its reasoning
 * has no content.
 */
export class ReasoningParser {
  /** Text that may turn out to be left out. */
  held = "";
  /** Tokens up to the end of the reasoning, with the markers. */
  tokens = 0;
  /** Whether line breaks that come now are left out. */
  #trims: boolean;
  /** The text to omit at the start of the reasoning; empty after it was omitted, or after other text. */
  #label: string;

  constructor(
    private state: State,
    private readonly reasoning: Pick<Reasoning, "openId" | "closeId" | "dialect"> | null,
  ) {
    this.#trims = state === "reasoning";
    this.#label = reasoning?.dialect.label.trimStart() ?? "";
  }

  /**
   * The text that now certainly belongs to the answer and was not returned before. ``text`` is what a token completes,
   * null at the end of the answer.
   */
  feed(text: string, tokenId: number | null): Parts {
    const { reasoning, state } = this;
    const opens = state === "start" && tokenId === reasoning?.openId;
    const closes = state === "reasoning" && tokenId === reasoning?.closeId;
    if (tokenId !== null && (opens || state === "reasoning")) this.tokens++;
    // The decoder writes a marker unless it is a special token.
    if (opens || closes) text = text.replace(reasoning.dialect[opens ? "open" : "close"], "");
    let all = this.held + text;
    if (state === "start" && (tokenId === null || all.trim() !== "")) this.state = "content";
    if (this.#trims) all = all.replace(/^\n+/, "");
    if (all !== "") this.#trims = false;
    const isContent = this.state === "content";
    let waits = state === "start";
    if (!waits && !isContent && this.#label !== "" && all !== "") {
      waits = all.length < this.#label.length && this.#label.startsWith(all);
      if (all.startsWith(this.#label)) {
        all = all.slice(this.#label.length).replace(/^\n+/, "");
        this.#trims = all === "";
      }
      if (!waits) this.#label = "";
    }
    const settled = isContent ? all : waits ? "" : all.replace(/\n+$/, "");
    this.held = all.slice(settled.length);
    if (opens || closes) {
      this.state = opens ? "reasoning" : "content";
      this.held = "";
      this.#trims = true;
    }
    return isContent ? ["", settled] : [settled, ""];
  }
}

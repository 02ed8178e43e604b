// The parameters of embeddings' extensions, reranking, scores and classes, as `nearfar serve` has them.

/** How texts beyond the context are treated: an error, or shortened at their end. */
export interface TruncationParams {
  /** Shortens a text to the context. In a pair, only the document is shortened. */
  readonly truncate?: boolean | null | undefined;
  /** Shortens a text to this number of tokens; -1 for the context. */
  readonly truncate_prompt_tokens?: number | null | undefined;
  readonly model?: string | null | undefined;
  readonly user?: string | null | undefined;
  readonly signal?: AbortSignal | null | undefined;
}

/** The kinds of text for which a model may have prompts, as in Cohere's API. */
export type InputType = "search_query" | "search_document" | "classification" | "clustering";

export interface TextDocument {
  readonly text: string;
  readonly [key: string]: unknown;
}

export interface RerankParams extends TruncationParams {
  readonly query: string;
  readonly documents: readonly (string | TextDocument)[];
  /** How many of the best documents are returned; by default, and with 0, all. */
  readonly top_n?: number | null | undefined;
  /** Whether results contain the documents; true by default. */
  readonly return_documents?: boolean | null | undefined;
  /** Shortens each document. */
  readonly max_tokens_per_doc?: number | null | undefined;
}

/** Each of ``text_2`` is scored with ``text_1``, or with the one of the same index if there are several. */
export interface ScoreParams extends TruncationParams {
  readonly text_1: string | readonly string[];
  readonly text_2: string | readonly string[];
}

export interface ClassifyParams extends TruncationParams {
  /** Texts or token ids. */
  readonly input: string | readonly string[] | readonly number[] | readonly (readonly number[])[];
  /**
   * Zero-shot classification: labels of the request instead of the model's, which must be one of natural language
   * inference. ``probs`` are theirs then, in this order. A text that is shortened keeps the complete hypothesis.
   */
  readonly labels?: readonly string[] | null | undefined;
  /** What a text with a label entails; the label replaces {}. By default "This example is {}." */
  readonly hypothesis_template?: string | null | undefined;
  /** Whether a text may have several labels. If not, which is the default, the probabilities add up to 1. */
  readonly multi_label?: boolean | null | undefined;
}

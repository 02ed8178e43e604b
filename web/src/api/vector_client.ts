// Clients that make vectors in OpenAI's form, of which only the vectors are read.

/** ``Params``: those that the caller sends; a client may have more. */
export interface VectorClient<Params> {
  readonly embeddings: {
    create(
      params: Params,
      options?: { readonly signal?: AbortSignal },
    ): PromiseLike<{ readonly data: readonly { readonly index: number; readonly embedding: readonly number[] }[] }>;
  };
}

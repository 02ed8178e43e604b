// @nearfar/web/retrieval: an index of documents in the browser, searched by vectors and by words.

export type { ErrorCode, ErrorDetails, ErrorJson } from "../errors.js";
export { BundleError, DeviceError, NearfarError, RequestError, StorageError, WorkerError } from "../errors.js";
export type { Document, DocumentFormat, DocumentOptions, Passage } from "./document.js";
export { DOCUMENT_FORMATS, readDocument } from "./document.js";
export type { Embedder, EmbedderOptions, TextKind } from "./embedder.js";
export { engineEmbedder } from "./embedder.js";
export { IndexStore } from "./index_store.js";
export type { NewDocument } from "./indexed_document.js";
export type {
  AddOptions,
  DocumentInfo,
  Hit,
  IndexApi,
  IndexOptions,
  SearchMode,
  SearchOptions,
} from "./retrieval_index.js";
export { RetrievalIndex } from "./retrieval_index.js";
export type { RemoteIndexOptions } from "./remote_index.js";
export { connectRetrieval } from "./remote_index.js";
export { serveRetrieval } from "./serve_retrieval.js";
export type { VectorType } from "./vectors.js";
export { MAX_VECTORS } from "./vectors.js";

// The worker of the documents page: it loads the embedding model once, and serves the index of the user's documents over
// the port of each message.

import { Engine } from "../../src/index.js";
import type { Embedder } from "../../src/retrieval/index.js";
import { engineEmbedder, serveRetrieval } from "../../src/retrieval/index.js";

export interface LibraryStart {
  /** The address of the embedding model's bundle. */
  readonly bundle: string;
  readonly port: MessagePort;
}

let embedder: Promise<Embedder> | null = null;

self.addEventListener("message", ({ data }: MessageEvent<LibraryStart>) => {
  const { bundle, port } = data;
  embedder ??= Engine.load(bundle).then((engine) => engineEmbedder(engine, bundle));
  // The page receives the failure when it opens the index.
  embedder.catch(() => undefined);
  serveRetrieval(port, embedder);
});

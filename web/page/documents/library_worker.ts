// The worker of the documents page: it loads the embedding model and serves the index of the user's documents. The
// page's first message has the addresses and the port.

import { Engine } from "../../src/index.js";
import { engineEmbedder, serveRetrieval } from "../../src/retrieval/index.js";

export interface LibraryStart {
  /** The address of the embedding model's bundle. */
  readonly bundle: string;
  readonly port: MessagePort;
}

self.addEventListener("message", ({ data }: MessageEvent<LibraryStart>) => {
  const { bundle, port } = data;
  const embedder = Engine.load(bundle).then((engine) => engineEmbedder(engine, bundle));
  // The page receives the failure when it opens the index.
  embedder.catch(() => undefined);
  serveRetrieval(port, embedder);
});

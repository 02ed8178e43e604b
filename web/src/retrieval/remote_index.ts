// The page's side: an index that runs in a worker.

import { WorkerError } from "../errors.js";
import { Remote } from "../worker/remote.js";
import type { WirePort } from "../worker/wire.js";
import type { DocumentInfo, Hit, IndexApi, IndexOptions } from "./retrieval_index.js";

/** The options that can be sent to a worker. */
export interface RemoteIndexOptions extends Omit<IndexOptions, "gpu" | "store"> {
  readonly store?: false | undefined;
}

/**
 * Open an index in the worker that serves the other side of ``port`` by serveRetrieval. Throws what RetrievalIndex.open
 * throws. After `close`, every call throws WorkerError.
 */
export async function connectRetrieval(
  port: WirePort,
  name: string,
  options: RemoteIndexOptions = {},
): Promise<IndexApi> {
  const remote = new Remote(port);
  const call = <T>(method: string, ...args: readonly unknown[]): Promise<T> =>
    remote.call([method], args) as Promise<T>;
  await call("open", name, options);
  return {
    name,
    documents: () => call<readonly DocumentInfo[]>("documents"),
    textOf: (id) => call<string | null>("textOf", id),
    // A document may have functions, which the other side does not need.
    add: (documents, added) =>
      call(
        "add",
        documents.map(({ id, title, document: { text, passages } }) => ({ id, title, document: { text, passages } })),
        added,
      ),
    delete: (id) => call<boolean>("delete", id),
    search: (query, searched) => call<Hit[]>("search", query, searched),
    save: () => call("save"),
    close: () => {
      void call("close").finally(() => {
        remote.close(new WorkerError("The index was closed; connect again"));
      });
    },
  };
}

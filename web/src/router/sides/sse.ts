// Server-sent events: yields the data of each event from the bytes of a connection. The format is that of the HTML
// standard (section 9.2.6) with lines that end in \n or \r\n; only the field ``data`` matters here.

import { Unavailable } from "../../errors.js";

/** A server that never ends its line must not fill the memory. */
const MAX_EVENT_CHARACTERS = 8 << 20;

/**
 * The data of each event. An event that is cut off by the end of the connection is left out, as the standard says.
 * Leaving the loop closes the connection.
 */
export async function* events(body: ReadableStream<Uint8Array>): AsyncGenerator<string, void, undefined> {
  // Not every browser iterates a stream.
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let pending = "";
  let data: string[] = [];
  let size = 0;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const text = decoder.decode(value, { stream: true });
      const lines = (pending + text).split("\n");
      pending = lines.pop() ?? "";
      size += text.length;
      for (const ended of lines) {
        const line = ended.endsWith("\r") ? ended.slice(0, -1) : ended;
        if (line.startsWith("data:")) data.push(line.slice("data:".length).replace(/^ /, ""));
        else if (line === "" && data.length > 0) {
          yield data.join("\n");
          data = [];
          size = pending.length;
        }
      }
      if (size > MAX_EVENT_CHARACTERS)
        throw new Unavailable(
          `The far side sent an event of over ${MAX_EVENT_CHARACTERS >> 20} MB; is it a server of language models?`,
        );
    }
  } finally {
    // Nothing waits for the connection to close, and its failure has been reported.
    reader.cancel().catch(() => undefined);
  }
}

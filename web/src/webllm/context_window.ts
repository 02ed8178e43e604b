// context_window_size: how many pages of keys and values it takes.

import { RequestError } from "../errors.js";
import { Engine } from "../engine.js";

/**
 * The load option for a context of at most ``tokens``: whole pages, rounded down; none for -1. Throws RequestError if
 * the bundle's context is shorter or a page is longer, and what Engine.plan throws.
 */
export async function pagesFor(
  address: string,
  tokens: number,
  signal: AbortSignal,
): Promise<{ readonly pages?: number }> {
  if (tokens === -1) return {};
  const { context: pageSize } = await Engine.plan(address, { signal, pages: 1 });
  const pages = Math.floor(tokens / pageSize);
  if (pages === 0) throw refused(tokens, `a page of keys and values has ${pageSize} tokens; give at least as many`);
  const { context } = await Engine.plan(address, { signal, pages });
  if (context < pages * pageSize)
    throw refused(
      tokens,
      `the bundle is compiled for ${context}; give at most that, or compile it with a longer context`,
    );
  return { pages };
}

function refused(tokens: number, says: string): RequestError {
  return new RequestError(`context_window_size is ${tokens}, but ${says}`, { param: "context_window_size" });
}

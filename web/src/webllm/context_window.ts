// Converts context_window_size into a number of pages of keys and values.

import { RequestError } from "../errors.js";
import { Engine } from "../engine.js";

/**
 * The load option for a context of at most ``tokens``, in whole pages, rounded down. Returns no option for -1. Throws
 * RequestError if the bundle's context is shorter or a page is longer, and the errors of Engine.plan.
 */
export async function pagesFor(
  address: string,
  tokens: number,
  signal: AbortSignal,
): Promise<{ readonly pages?: number }> {
  if (tokens === -1) return {};
  const { context: pageSize } = await Engine.plan(address, { signal, pages: 1 });
  const pages = Math.floor(tokens / pageSize);
  if (pages === 0) throw refused(tokens, `a page of keys and values has ${pageSize} tokens; use at least that many`);
  const { context } = await Engine.plan(address, { signal, pages });
  if (context < pages * pageSize)
    throw refused(
      tokens,
      `the bundle is compiled for ${context}; use at most that, or compile it with a longer context`,
    );
  return { pages };
}

function refused(tokens: number, problem: string): RequestError {
  return new RequestError(`context_window_size is ${tokens}, but ${problem}`, { param: "context_window_size" });
}

// Who is still there: each end of a connection holds a Web Lock for as long as it lives, and waits for the other's. A lock is freed when its holder
// is terminated, closed or crashed, of which nothing else tells. Where there are no locks, as in Node, nothing is held and nothing is heard.

export type End = "page" | "worker";

const nameOf = (connection: string, end: End): string => `nearfar ${connection} ${end}`;

const locks = (): LockManager | undefined =>
  (globalThis as { readonly navigator?: { readonly locks?: LockManager } }).navigator?.locks;

/** Holds this end's lock until ``over`` aborts. Resolves as soon as it is held. */
export function hold(connection: string, end: End, over: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const manager = locks();
    if (manager === undefined) {
      resolve();
      return;
    }
    const held = (): Promise<void> => {
      resolve();
      return new Promise((free) => {
        over.addEventListener("abort", () => {
          free();
        });
      });
    };
    // A page that may not use locks, such as a sandboxed one, has none.
    manager.request(nameOf(connection, end), held).catch(() => {
      resolve();
    });
  });
}

/** Calls ``gone`` once the other end, which holds its lock by now, does so no more; never after ``over`` aborted. */
export function whenGone(connection: string, end: End, over: AbortSignal, gone: () => void): void {
  const freed = (): void => {
    if (!over.aborted) gone();
  };
  locks()
    ?.request(nameOf(connection, end), { signal: over }, freed)
    .catch(() => undefined);
}

// Detects that the other end of a connection is gone. Each end holds a Web Lock while it lives, and waits for the lock
// of the other end. A lock is freed when its holder is terminated, closed or crashes; no other event reports this.
// Without Web Locks, as in Node, nothing is detected.

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
    // A page that may not use locks, such as a sandboxed page, continues without them.
    manager.request(nameOf(connection, end), held).catch(() => {
      resolve();
    });
  });
}

/** Calls ``gone`` when the other end, which must hold its lock already, loses it; never after ``over`` has aborted. */
export function whenGone(connection: string, end: End, over: AbortSignal, gone: () => void): void {
  const freed = (): void => {
    if (!over.aborted) gone();
  };
  locks()
    ?.request(nameOf(connection, end), { signal: over }, freed)
    .catch(() => undefined);
}

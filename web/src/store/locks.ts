// Locks that all tabs and workers of this origin share. The browser releases a lock when its holder ends for any
// reason.

/** Wait for a lock and run the task while holding it. Throws the signal's reason if it is aborted while waiting. */
export async function whileHeld<T>(
  locks: LockManager,
  name: string,
  task: () => Promise<T>,
  signal?: AbortSignal,
): Promise<T> {
  signal?.throwIfAborted();
  return await locks.request(name, signal === undefined ? {} : { signal }, task);
}

/** Run the task while holding all of the locks. Throws ``inUse(index)`` if another tab or worker holds one of them. */
export async function whileFree<T>(
  locks: LockManager,
  names: readonly string[],
  task: () => Promise<T>,
  inUse: (index: number) => Error,
): Promise<T> {
  const from = async (index: number): Promise<T> => {
    const name = names[index];
    if (name === undefined) return await task();
    return await locks.request(name, { ifAvailable: true }, async (lock) => {
      if (lock === null) throw inUse(index);
      return await from(index + 1);
    });
  };
  return await from(0);
}

/** Hold a shared lock; the returned function releases it. Throws the signal's reason. */
export async function holdShared(locks: LockManager, name: string, signal: AbortSignal): Promise<() => Promise<void>> {
  signal.throwIfAborted();
  let release: () => void = () => undefined;
  const gone = new Promise<void>((resolve) => {
    release = resolve;
  });
  let held: Promise<void> = Promise.resolve();
  await new Promise<void>((resolve, reject) => {
    held = locks.request(name, { mode: "shared", signal }, async () => {
      resolve();
      await gone;
    });
    held.catch(reject);
  });
  return async () => {
    release();
    await held;
  };
}

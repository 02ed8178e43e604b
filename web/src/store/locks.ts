// Locks that all tabs and workers of this origin share. The browser gives one back when its holder ends, however that ends.

/** Run the task while holding a lock, after waiting for it. Throws the signal's reason where it is aborted while waiting. */
export async function whileHeld<T>(
  locks: LockManager,
  name: string,
  task: () => Promise<T>,
  signal?: AbortSignal,
): Promise<T> {
  signal?.throwIfAborted();
  return await locks.request(name, signal === undefined ? {} : { signal }, task);
}

/** Run the task while nobody holds any of the locks. Throws what ``inUse`` makes of the first that is held. */
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

/** Hold a lock together with others that hold it so; what comes back gives it free. Throws the signal's reason. */
export async function holdShared(locks: LockManager, name: string, signal: AbortSignal): Promise<() => Promise<void>> {
  signal.throwIfAborted();
  let letGo: () => void = () => undefined;
  const gone = new Promise<void>((resolve) => {
    letGo = resolve;
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
    letGo();
    await held;
  };
}

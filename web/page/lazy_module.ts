// Loads a part of the page when it is first needed.

/**
 * Returns a function that runs its callback as soon as the module is loaded. If the module cannot be loaded, the
 * content
 * stays plain.
 */
export function whenLoaded<M>(load: () => Promise<M>): (use: (module: M) => void) => void {
  let loaded: M | null = null;
  let loading: Promise<M> | null = null;
  return (use) => {
    if (loaded !== null) {
      use(loaded);
      return;
    }
    loading ??= load();
    loading.then(
      (module) => {
        loaded = module;
        use(module);
      },
      () => {
        // Try again with the next block.
        loading = null;
      },
    );
  };
}

// A part of the page that is loaded when it is first needed.

/** Returns a function that runs its callback at once if the module is loaded, else as soon as it is. Content stays plain if the module cannot be loaded. */
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

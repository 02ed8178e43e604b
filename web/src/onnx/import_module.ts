// The import of a module by an address that is known at run time only. build.mjs keeps its comments, which a minifier would remove.

export async function importModule(address: string): Promise<unknown> {
  return (await import(/* @vite-ignore */ /* webpackIgnore: true */ address)) as unknown;
}

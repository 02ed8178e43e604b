// Imports a module by an address that is only known at run time. build.mjs preserves the comments below, which a
// minifier would remove.

export async function importModule(address: string): Promise<unknown> {
  return (await import(/* @vite-ignore */ /* webpackIgnore: true */ address)) as unknown;
}

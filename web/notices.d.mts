import type { Metafile } from "esbuild";

/** The names of the packages whose code is in the outputs of these metafiles, in order. */
export function packagesIn(metafiles: readonly Pick<Metafile, "outputs">[]): readonly string[];

/** The text of the notices: our license, then that of each package. Throws for a package without a license file. */
export function noticesOf(metafiles: readonly Pick<Metafile, "outputs">[], modules?: string): Promise<string>;

import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { expect, it } from "vitest";

import { build } from "../browser_build.mjs";

it("writes addresses in quotes, which every bundler follows, and the banner as it is", async () => {
  const folder = await mkdtemp(join(tmpdir(), "browser-build-"));
  const contents = `
    export const later = () => import("./later.js");
    export const worker = new URL("./worker.js", import.meta.url);
    export const named = (name) => import(\`./\${name}.js\`);`;
  const banner = "const unused = /* kept */ 1;\n";
  try {
    const outfile = join(folder, "out.js");
    await build({ stdin: { contents }, outfile, banner, bundle: false });
    const written = await readFile(outfile, "utf8");
    expect(written.startsWith(banner)).toBe(true);
    for (const address of ['import("./later.js")', 'new URL("./worker.js",import.meta.url)', "}.js`)"])
      expect(written).toContain(address);
  } finally {
    await rm(folder, { recursive: true });
  }
});

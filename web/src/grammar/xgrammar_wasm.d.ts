// xgrammar's wasm as a module, which xgrammar_module.mjs makes. Its types are in a file of their own, which the package
// ships.
/* oxlint-disable typescript/consistent-type-imports */

declare module "xgrammar-wasm" {
  // An import statement may not be relative here, hence import() below.
  const instantiate: (options: {
    print: (line: string) => void;
    printErr: (line: string) => void;
  }) => Promise<import("./xgrammar.js").Binding>;
  export default instantiate;
}

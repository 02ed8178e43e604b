export default {
  output: "export",
  // The packages are installed in the folder above this one.
  turbopack: { root: `${import.meta.dirname}/..` },
};

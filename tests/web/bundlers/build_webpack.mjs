// Builds main.js and worker_main.js, with webpack's defaults, and fails on a warning as well.

import webpack from "webpack";

const options = {
  mode: "production",
  entry: { main: "./main.js", worker_main: "./worker_main.js" },
  output: { path: `${import.meta.dirname}/out`, publicPath: "auto" },
  performance: { hints: false },
  // Terser takes six seconds.
  optimization: { minimize: process.argv.includes("--minimize") },
};

webpack(options, (error, stats) => {
  console.log(error ?? stats.toString({ colors: false }));
  process.exitCode = error !== null || stats.hasErrors() || stats.hasWarnings() ? 1 : 0;
});

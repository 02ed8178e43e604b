// Bundles the package, its tools and the pages into dist/.

import { createHash } from "node:crypto";
import { copyFile, cp, mkdir, readFile, readdir, rm, writeFile } from "node:fs/promises";

import { build } from "./browser_build.mjs";
import { noticesOf } from "./notices.mjs";
import { SHARED_SCRIPT, sharedScript } from "./shared_script.mjs";
import { tokenizersEsbuild } from "./tokenizers_module.mjs";
import { xgrammarEsbuild } from "./xgrammar_module.mjs";

// Hugging Face's package, without what is not needed here.
const packages = [tokenizersEsbuild];
const common = {
  // For debugging; packages contain none.
  sourcemap: process.argv.includes("--source-maps"),
  metafile: true,
  plugins: packages,
};
const browser = { ...common, platform: "browser" };

// Separate files, which other files import when they first need them: the grammar compiler with its wasm, the runner
// for ONNX bundles, and the engine.
const outside = (name, filter, path) => ({
  name,
  setup: ({ onResolve }) => onResolve({ filter }, () => ({ path, external: true })),
});
const laterFiles = (folder) => [
  outside("grammar-outside", /\/grammar\/index\.js$/, `${folder}/grammar.js`),
  outside("onnx-outside", /\/onnx\/index\.js$/, `${folder}/onnx.js`),
  outside("encoders-outside", /\/encoders\/index\.js$/, `${folder}/encoders.js`),
  outside("experts-outside", /\/experts\/index\.js$/, `${folder}/experts.js`),
  outside("catalog-outside", /\/catalog\/index\.js$/, `${folder}/catalog.js`),
  outside("prefixes-outside", /\/prefixes\/index\.js$/, `${folder}/prefixes.js`),
  outside("tuning-outside", /\/tuning\/index\.js$/, `${folder}/tuning.js`),
  outside("adapters-outside", /\/adapters\/index\.js$/, `${folder}/adapters.js`),
  outside("decide-outside", /\/decide\/index\.js$/, `${folder}/decide.js`),
  outside("drafts-outside", /\/drafts\/index\.js$/, `${folder}/drafts.js`),
  outside("attachments-outside", /\/attachments\/index\.js$/, `${folder}/attachments.js`),
  outside("audio-outside", /\/audio\/index\.js$/, `${folder}/audio.js`),
  outside("images-outside", /\/images\/index\.js$/, `${folder}/images.js`),
  outside("videos-outside", /\/videos\/index\.js$/, `${folder}/videos.js`),
  outside("runtime-outside", /\/runtime\/index\.js$/, `${folder}/runtime.js`),
];
// A page that passes an engine to Hybrid does not need another one, and few use speculation, prompts that far
// computes, embeddings, descriptions, files or pictures.
const hybridOutside = [
  outside("engine-outside", /^\.\.\/index\.js$/, "./nearfar.js"),
  outside("speculation-outside", /^\.\/speculation\.js$/, "./speculation.js"),
  outside("prefill-outside", /^\.\/prefill\.js$/, "./prefill.js"),
  outside("encoding-outside", /^\.\/hybrid_encoding\.js$/, "./hybrid_encoding.js"),
  outside("decisions-outside", /^\.\/hybrid_decisions\.js$/, "./hybrid_decisions.js"),
  outside("masks-outside", /^\.\/masks\.js$/, "./masks.js"),
  outside("describer-outside", /^\.\/describer\.js$/, "./describer.js"),
  outside("parts-outside", /^\.\/parts\.js$/, "./parts.js"),
  outside("attachments-outside", /\/attachments\/index\.js$/, "./attachments.js"),
  outside("images-outside", /\/images\/index\.js$/, "./images.js"),
];

// Bundlers would look for the modules of `import(address)` among their own files. These comments prevent it, and only a
// banner is not minified.
const IMPORT_BY_ADDRESS =
  "const importByAddress = (address) => import(/* @vite-ignore */ /* webpackIgnore: true */ address);\n";
const importModule = {
  name: "import-module",
  setup: ({ onLoad }) =>
    onLoad({ filter: /[\\/]onnx[\\/]import_module\.ts$/ }, () => ({
      contents: "export const importModule = importByAddress;",
      loader: "js",
    })),
};

// Each of these is complete, so that a page can load it as one file.
const ENTRIES = {
  nearfar: "src/index.ts",
  runtime: "src/runtime/index.ts",
  worker: "src/worker/index.ts",
  client: "src/worker/client.ts",
  calls: "src/worker/calls.ts",
  webllm: "src/webllm/index.ts",
  "language-model": "src/language_model/index.ts",
  retrieval: "src/retrieval/index.ts",
  "choose-encoder": "src/encoders/choice/index.ts",
  voice: "src/voice/index.ts",
  journal: "src/journal/index.ts",
  receipts: "src/receipts/index.ts",
  agent: "src/agent/index.ts",
  probe: "src/probe/index.ts",
};

// Adapters for libraries that the application installs. The React adapter loads nearfar.js if the bundle is an address.
const adaptersOutside = [outside("engine-outside", /^\.\.\/index\.js$/, "./nearfar.js")];
const ADAPTERS = {
  fetch: "src/fetch/index.ts",
  ai_sdk: "src/ai_sdk/index.ts",
  langchain: "src/langchain/index.ts",
  react: "src/react/index.ts",
};

const PAGES = {
  page: "page/main.ts",
  bench: "page/bench.ts",
  documents: "page/documents/main.ts",
  documents_worker: "page/documents/library_worker.ts",
  transcripts: "page/transcripts/main.ts",
  voice: "page/voice/main.ts",
  engine_worker: "page/engine_worker.ts",
  // An address of the file with src/audio.
  microphone_worklet: "src/audio/microphone_worklet.ts",
};

/** A page with the markup that it shares with others: page/parts/NAME.html for each line `<!-- part: NAME -->`. */
async function copyPage(file) {
  const lines = (await readFile(`page/${file}`, "utf8")).split("\n").map(async (line) => {
    const [, indent, name] = /^( *)<!-- part: (\w+) -->$/.exec(line) ?? [];
    if (name === undefined) return line;
    const part = (await readFile(`page/parts/${name}.html`, "utf8")).trimEnd();
    return part.replace(/^/gm, indent);
  });
  await writeFile(`dist/page/${file}`, (await Promise.all(lines)).join("\n"));
}

/**
 * The service worker of the page, which lists all of the page's files. It is built last, because its hash covers them.
 */
async function buildServiceWorker() {
  const entries = await readdir("dist/page", { withFileTypes: true });
  const files = entries
    .filter((entry) => entry.isFile() && !entry.name.endsWith(".map"))
    .map(({ name }) => name)
    .sort();
  const hash = createHash("sha256");
  for (const file of files) hash.update(file).update(await readFile(`dist/page/${file}`));
  // The grammar compiler, the ONNX runner and PDF.js are large and rarely used, the page loads no adapters,
  // and it does not show the licenses. The documents page needs PDF.js and the reader of Word documents.
  const cached = files.filter((file) => !/^(?:adapters|grammar|onnx|read_pdf|read_docx)-|^LICENSES/.test(file));
  const encodings = (await readdir("dist/page/pdf/cmaps")).filter((name) => name.endsWith(".bcmap")).sort();
  const documents = [
    ...files.filter((file) => /^read_(?:pdf|docx)-/.test(file)),
    "pdf/pdf.worker.min.mjs",
    ...encodings.map((name) => `pdf/cmaps/${name}`),
  ];
  const define = { PAGE_BUILD: JSON.stringify({ hash: hash.digest("hex").slice(0, 16), files: cached, documents }) };
  await build({ ...browser, entryPoints: ["page/service_worker.ts"], outdir: "dist/page", define });
}

function metafiles(results) {
  return results.map(({ metafile }) => metafile);
}

await rm("dist", { recursive: true, force: true });
await mkdir("dist/page", { recursive: true });
const built = await Promise.all([
  build({ ...browser, entryPoints: ENTRIES, outdir: "dist", plugins: [...packages, ...laterFiles(".")] }),
  build({
    ...browser,
    entryPoints: { hybrid: "src/router/index.ts" },
    outdir: "dist",
    plugins: [...packages, ...hybridOutside],
  }),
  build({ ...browser, entryPoints: { speculation: "src/router/speculation.ts" }, outdir: "dist" }),
  build({ ...browser, entryPoints: { prefill: "src/router/prefill.ts" }, outdir: "dist" }),
  build({ ...browser, entryPoints: { hybrid_encoding: "src/router/hybrid_encoding.ts" }, outdir: "dist" }),
  build({ ...browser, entryPoints: { hybrid_decisions: "src/router/hybrid_decisions.ts" }, outdir: "dist" }),
  build({ ...browser, entryPoints: { describer: "src/router/describer.ts" }, outdir: "dist" }),
  build({ ...browser, entryPoints: { masks: "src/router/masks.ts" }, outdir: "dist" }),
  build({ ...browser, entryPoints: { parts: "src/router/parts.ts" }, outdir: "dist" }),
  build({ ...browser, entryPoints: { finder: "src/router/finder.ts" }, outdir: "dist", plugins: hybridOutside }),
  build({ ...browser, entryPoints: { adapters: "src/adapters/index.ts" }, outdir: "dist" }),
  build({ ...browser, entryPoints: { decide: "src/decide/index.ts" }, outdir: "dist" }),
  build({ ...browser, entryPoints: { drafts: "src/drafts/index.ts" }, outdir: "dist" }),
  build({ ...browser, entryPoints: { images: "src/images/index.ts" }, outdir: "dist" }),
  build({ ...browser, entryPoints: { videos: "src/videos/index.ts" }, outdir: "dist" }),
  build({ ...browser, entryPoints: { audio: "src/audio/index.ts" }, outdir: "dist" }),
  build({ ...browser, entryPoints: { attachments: "src/attachments/index.ts" }, outdir: "dist" }),
  // An address of audio.js.
  build({ ...browser, entryPoints: { microphone_worklet: "src/audio/microphone_worklet.ts" }, outdir: "dist" }),
  build({ ...browser, entryPoints: { experts: "src/experts/index.ts" }, outdir: "dist" }),
  build({ ...browser, entryPoints: { catalog: "src/catalog/index.ts" }, outdir: "dist" }),
  build({ ...browser, entryPoints: { prefixes: "src/prefixes/index.ts" }, outdir: "dist" }),
  build({ ...browser, entryPoints: { tuning: "src/tuning/index.ts" }, outdir: "dist" }),
  build({ ...browser, entryPoints: { encoders: "src/encoders/index.ts" }, outdir: "dist" }),
  build({
    ...browser,
    entryPoints: { grammar: "src/grammar/index.ts" },
    outdir: "dist",
    plugins: [...packages, xgrammarEsbuild],
  }),
  build({
    ...browser,
    entryPoints: { onnx: "src/onnx/index.ts" },
    outdir: "dist",
    banner: IMPORT_BY_ADDRESS,
    plugins: [importModule],
  }),
  build({ ...browser, entryPoints: ADAPTERS, outdir: "dist", packages: "external", plugins: adaptersOutside }),
]);
const page = await build({
  ...browser,
  splitting: true,
  entryPoints: PAGES,
  outdir: "dist/page",
  plugins: [...packages, xgrammarEsbuild],
});
await Promise.all([
  build({
    ...common,
    minify: false,
    platform: "node",
    packages: "external",
    entryPoints: ["tools/*.ts"],
    outdir: "dist/tools",
    plugins: laterFiles(".."),
  }),
  ...["index.html", "bench.html", "documents.html", "transcripts.html", "voice.html"].map(copyPage),
  ...[
    "style.css",
    "chat.css",
    "panel.css",
    "markdown.css",
    "history.css",
    "bundles.json",
    "sides.css",
    "bench.css",
    "task.css",
    "documents.css",
    "transcripts.css",
    "voice.css",
    "icon.svg",
  ].map((file) => copyFile(`page/${file}`, `dist/page/${file}`)),
  // The legacy build, because the other one needs browsers that are newer than WebGPU.
  cp("node_modules/pdfjs-dist/legacy/build/pdf.worker.min.mjs", "dist/page/pdf/pdf.worker.min.mjs"),
  cp("node_modules/pdfjs-dist/cmaps", "dist/page/pdf/cmaps", { recursive: true }),
  // npm packs it from the package's folder.
  copyFile("../LICENSE", "LICENSE"),
  sharedScript().then((text) => writeFile(SHARED_SCRIPT, text)),
  writeFile("dist/LICENSES.txt", await noticesOf(metafiles(built))),
  writeFile("dist/page/LICENSES.txt", await noticesOf(metafiles([page]))),
  copyFile("../server_fallback/router/fitting/demo_policy.json", "dist/page/demo_policy.json"),
]);
await buildServiceWorker();

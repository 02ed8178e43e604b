// Makes @huggingface/tokenizers smaller: it removes tokenizers that no language model has, whose tokenizer.json is
// refused by name, as any unknown one, or whose use is; and what src/text/tokenizer.ts never asks for: pairs of texts,
// masks, methods that it does not call, and options of transformers' configuration, which it does not pass. Its two
// searches are those of src/text/piece_search.ts, which are shorter.

import { readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";

const ENCODERS_ONLY = '    throw new Error("WordPiece is only for encoders");';

const SEARCHES = JSON.stringify(fileURLToPath(new URL("src/text/piece_search.ts", import.meta.url)));

// Each part of the package's file, and its replacement.
const CHANGES = [
  // The decoder of speech recognition without a language model.
  ['    case "CTC":\n      return new CTC_default(config);\n', ""],
  // The tokenizers library has no such pre-tokenizer.
  ['    case "Replace":\n      return new Replace_default2(config);\n', ""],
  // No published tokenizer of a language model has it.
  ['    case "FixedLength":\n      return new FixedLength_default(config);\n', ""],
  // src/encoders/tokenizer computes WordPiece, exactly.
  [/(?<=var WordPieceTokenizer = .*?\n {2}encode\(tokens\) \{\n).*?(?=\n {2}\}\n\};)/s, ENCODERS_ONLY],
  [/(?<=var WordPiece = .*?\n {2}decode_chain\(tokens\) \{\n).*?(?=\n {2}\}\n\};)/s, ENCODERS_ONLY],
  [/var PriorityQueue = class \{.*?\n\};/s, `import { MergeQueue as PriorityQueue } from ${SEARCHES};`],
  [
    /var TokenLatticeNode = .*?(?=\nvar TokenLattice_default)/s,
    `import { PieceLattice as TokenLattice } from ${SEARCHES};`,
  ],
  // One class for the four forms of Unicode.
  [/var NFC = .*?var NFKD_default = NFKD;/s, "var NFC_default, NFD_default, NFKC_default, NFKD_default;"],
  ['this.form = "NFC";', "this.form = this.config.type;"],
  [/(?<=return new )NFK?[CD]_default(?=\(config\);)/g, "UnicodeNormalizer_default"],
  // Models without a type, from before tokenizer.json had one.
  [/ else \{\n\s+return new Legacy_default\(.*?\}\);\n\s+\}/s, ""],
  [/\n {2}tokenize\(text, \{ text_pair.*?\n {2}\}(?=\n {2}encode_text)/s, ""],
  [/\n {2}get_vocab\(with_added_tokens = true\).*?\n {2}\}(?=\n\};)/s, ""],
  [/\n {4}\(this\.config\.additional_special_tokens.*?\}\);(?=\n {4}if \(this\.decoder\))/s, ""],
  [/\n {4}this\.remove_space = .*?(?=\n {2}\})/s, ""],
  [/\n {6}if \(this\.remove_space === true\).*?(?=\n {6}if \(this\.normalizer)/s, ""],
  [/\n {4}if \(options\.clean_up_tokenization_spaces.*?(?=\n {4}return decoded;)/s, ""],
  [/\n {4}if \(options\.skip_special_tokens\) \{\n {6}tokens = .*?\n {4}\}/s, ""],
  [/\n {6}if \(options\.skip_special_tokens\) \{\n {8}decoded = .*?\n {6}\}/s, ""],
  [/,\n {6}tokens,\n {6}attention_mask: .*?(?=\n {4}\};\n)/s, ""],
  [/\n {4}if \(return_token_type_ids && .*?\n {4}\}/s, ""],
  [/\n {4}if \(!Array\.isArray\(token_ids\).*?\n {4}\}/s, ""],
  [/\n {4}const config_error = .*?\n {4}\}/s, ""],
  [/\n {4}this\.special_tokens = \[\];\n {4}this\.all_special_ids = \[\];/, ""],
  [/\n {6}if \(token\.special\) \{\n {8}this\.special_tokens\.push.*?\n {6}\}/s, ""],
  [
    "    text_pair = null,\n    add_special_tokens = true,\n    return_token_type_ids = null\n",
    "    add_special_tokens = true\n",
  ],
  ["      text_pair,\n", ""],
  ["{ text_pair = null, add_special_tokens = true })", "{ add_special_tokens = true })"],
  ["{ tokens: merge_arrays(tokens1 ?? [], tokens2 ?? []) }", "{ tokens: tokens1 }"],
  // Without pairs, the two are the same.
  ["return new RobertaProcessing_default(config);", "return new BertProcessing_default(config);"],
  [/let token_type_ids = new Array.*?return \{ tokens, token_type_ids \};/gs, "return { tokens };"],
  [
    / else if \("Sequence" in item\) \{.*?(?=\n {4}\}\n {4}return \{ tokens: processed_tokens)/s,
    ' else if (item.Sequence?.id === "A") processed_tokens = merge_arrays(processed_tokens, tokens);',
  ],
  ["return { tokens, tokens_pair };", "return { tokens };"],
  ["{ tokens, tokens_pair };", "{ tokens };"],
  ["\n        processed_tokens.tokens_pair,", "\n        null,"],
  ["\n    let types = [];", ""],
  ["\n          types.push(item.SpecialToken.type_id);", ""],
  [", token_type_ids: types", ""],
  ["const { tokens, token_type_ids } = this", "const { tokens } = this"],
  ["    const tokens2 = this.encode_text(text_pair || null);\n", "    const tokens2 = null;\n"],
];

/** A plugin for esbuild. Throws for a version of the package that has another form. */
export const tokenizersEsbuild = {
  name: "tokenizers-smaller",
  setup(build) {
    build.onLoad({ filter: /@huggingface[\\/]tokenizers[\\/]dist[\\/]tokenizers\.mjs$/ }, async ({ path }) => ({
      contents: replaced(await readFile(path, "utf8"), CHANGES, path),
      loader: "js",
    }));
  },
};

/** Throws if a part is missing. */
function replaced(contents, changes, path) {
  for (const [from, to] of changes) {
    if (contents.split(from).length < 2)
      throw new Error(`${path} does not contain ${from}; adapt its replacements to this version of the package`);
    contents = typeof from === "string" ? contents.replaceAll(from, () => to) : contents.replace(from, to);
  }
  return contents;
}

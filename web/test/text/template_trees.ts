// The syntax trees of the tests' chat templates, which Python wrote: this package has no parser of Jinja.

import trees from "../../../tests/conformance/template_trees.json" with { type: "json" };
import type { ChatTreeEntry, TokenizerEntry } from "../../src/runtime/manifest.js";
import { ChatTemplate } from "../../src/text/chat_template.js";
import type { ToolFormat } from "../../src/text/tools.js";

const TREES = trees as unknown as Readonly<Record<string, ChatTreeEntry>>;

/** The tree of a template. tests/template_trees.py adds it to the file. */
export function treeOf(source: string): ChatTreeEntry {
  const tree = TREES[source];
  if (tree !== undefined) return tree;
  throw new Error(`add ${JSON.stringify(source)} with .venv/bin/python tests/template_trees.py TEMPLATE`);
}

/** A template, and its tree, as a manifest has them. */
export function templateEntry(source: string): Pick<TokenizerEntry, "chat_template" | "chat_tree"> {
  return { chat_template: source, chat_tree: treeOf(source) };
}

export function templateOf(
  source: string,
  specialTokens: Readonly<Record<string, string>> = {},
  format: ToolFormat | null = null,
): ChatTemplate {
  return new ChatTemplate(source, treeOf(source), specialTokens, format);
}

// Where pictures stand in the prompts of chats, against transformers' prompts; the server's are compared with the same
// (tests/server_fallback/text/test_image_prompts.py).

import { readFileSync } from "node:fs";

import { expect, test } from "vitest";

import { encodeChat } from "../../src/api/chat_prompt.js";
import type { ChatModel } from "../../src/api/chat_prompt.js";
import { Pictures } from "../../src/images/pictures.js";
import type { ChatTreeEntry, ImageSpec } from "../../src/runtime/manifest.js";
import type { RenderedMessage, RenderOptions } from "../../src/text/chat_template.js";
import { ChatTemplate } from "../../src/text/chat_template.js";
import { ControlTokens, SENTINEL } from "../../src/text/control_tokens.js";

type Part = string | readonly [width: number, height: number];

interface Vectors {
  readonly templates: Readonly<Record<string, { readonly source: string; readonly tree: ChatTreeEntry }>>;
  readonly chats: readonly {
    readonly name: string;
    readonly messages: readonly { readonly role: "user" | "assistant"; readonly content: string | readonly Part[] }[];
  }[];
  readonly prompts: Readonly<Record<string, readonly string[]>>;
}

const read = (name: string): unknown => JSON.parse(readFileSync(`../tests/conformance/${name}`, "utf8"));
const { templates, chats, prompts } = read("image_prompts.json") as Vectors;
const SPECS = read("images.json") as Readonly<Record<string, { readonly spec: ImageSpec }>>;

const partOf = (part: Part) => {
  if (typeof part === "string") return { type: "text", text: part };
  const [width, height] = part;
  return { type: "image", image: { width, height, data: new Uint8Array(width * height * 3) } };
};

const CASES = Object.entries(templates).flatMap(([family, template]) =>
  chats.map((chat, index) => [`${family}: ${chat.name}`, family, template, chat, prompts[family]?.[index]] as const),
);

test.each(CASES)(
  "pictures stand where the chat template writes them: %s",
  async (_, family, template, chat, expected) => {
    const { spec } = SPECS[family] ?? {};
    if (spec === undefined) throw new Error(`images.json has no ${family}`);
    const { mark, placeholder } = spec.prompt;
    const pictures = new Pictures({
      spec,
      model: { hidden_size: 1, vision: null, hearing: null },
      features: () => Promise.reject(new Error("not computed")),
    });
    const controls = new ControlTokens([mark, placeholder], [mark, placeholder]);
    const renderer = new ChatTemplate(template.source, template.tree, { bos_token: "" });
    let prompt = "";
    const text = {
      encodeChat: (messages: readonly RenderedMessage[], options: RenderOptions) => {
        const marked = renderer.render(messages, options, controls);
        prompt = (options.pictures?.(marked, controls) ?? marked).replaceAll(SENTINEL, "");
        return [];
      },
      thinking: { reasoning: null },
    };
    const messages = chat.messages.map(({ role, content }) => ({
      role,
      content: typeof content === "string" ? content : content.map(partOf),
    }));
    const model = { text, context: 1e6, readPictures: pictures.read.bind(pictures) };
    await encodeChat(model as unknown as ChatModel, messages);
    const short = prompt.replaceAll(
      new RegExp(`(?:${placeholder.replaceAll(/[|]/g, "\\$&")})+`, "g"),
      (run) => `{${run.length / placeholder.length}}`,
    );
    expect(short).toBe(expected);
  },
);

// The demo page: loads the bundle that ?bundle= names (./bundle/ by default) and chats with it.

import type { Message } from "../src/index.js";
import { Engine } from "../src/index.js";
import { View } from "./view.js";

declare global {
  interface Window {
    /** For tests and for the console. */
    nearfar?: { readonly engine: Engine };
  }
}

async function main(): Promise<void> {
  let engine: Engine | null = null;
  let conversation: Message[] = [];
  let running = new AbortController();
  let answered = Promise.resolve();

  const view = new View({
    send: (prompt) => {
      if (engine !== null) answered = answer(engine, prompt);
    },
    stop: () => {
      running.abort();
    },
    newChat: () => {
      running.abort();
      void answered.then(() => {
        conversation = [];
        view.clear();
      });
    },
  });

  async function answer(engine: Engine, prompt: string): Promise<void> {
    running = new AbortController();
    const { signal } = running;
    const before = conversation;
    conversation = [...before, { role: "user", content: prompt }];
    const shown = view.ask(prompt);
    let text = "";
    try {
      for await (const event of engine.generate(conversation, { signal })) {
        text += event.text;
        shown.append(event.text);
        if (event.type === "done") shown.finish(event.timings);
      }
      conversation = [...conversation, { role: "assistant", content: text }];
    } catch (error) {
      // What was not answered is not part of the conversation.
      conversation = before;
      if (signal.aborted) shown.stopped();
      else shown.fail(error);
    }
  }

  try {
    const bundle = new URLSearchParams(location.search).get("bundle") ?? "./bundle/";
    engine = await Engine.load(bundle, {
      onProgress: (progress) => {
        view.progress(progress);
      },
    });
    window.nearfar = { engine };
    view.ready(engine.info);
  } catch (error) {
    console.error(error);
    view.fail(error);
  }
}

void main();

// A chat on a plain page. Each request contains the conversation so far, answers are streamed, and a button stops them.

import { Engine } from "@nearfar/web";
import type { ChatCompletionMessageParam } from "@nearfar/web";

import { element, input, ready, show } from "../page.js";

const messages: ChatCompletionMessageParam[] = [];
let running: AbortController | undefined;

const engine = await Engine.load("./bundle/", {
  onProgress: ({ phase, loadedBytes, totalBytes }) => {
    show("status", `${phase}: ${loadedBytes} of ${totalBytes} bytes`);
  },
});
ready();

element("form").onsubmit = async (event) => {
  event.preventDefault();
  const question = input("question").value;
  messages.push({ role: "user", content: question });
  add(question);
  const line = add("");
  running = new AbortController();
  element("stop").toggleAttribute("disabled", false);
  try {
    const stream = await engine.chat.completions.create(
      { messages, temperature: 0, stream: true },
      { signal: running.signal },
    );
    for await (const chunk of stream) line.append(chunk.choices[0]?.delta.content ?? "");
  } catch (error) {
    if (!running.signal.aborted) show("status", String(error));
  }
  element("stop").toggleAttribute("disabled", true);
  messages.push({ role: "assistant", content: line.textContent });
};
element("stop").onclick = () => running?.abort();

function add(text: string): HTMLElement {
  const line = document.createElement("li");
  line.textContent = text;
  element("messages").append(line);
  return line;
}

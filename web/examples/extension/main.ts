// The popup of a Chrome extension. The question starts with the text that is selected in the tab. The bundle is a
// folder of the extension, so nothing is sent anywhere. The browser closes a popup as soon as the user clicks elsewhere;
// the next one goes on with the answer.

import type { GenerationEvent } from "@nearfar/web";
import { Engine } from "@nearfar/web";
import { journalled } from "@nearfar/web/journal";

import { element, input, ready, show } from "../page.js";

declare const chrome: {
  readonly tabs: { query(info: { active: true; currentWindow: true }): Promise<{ id?: number }[]> };
  readonly scripting: {
    executeScript(injection: { target: { tabId: number }; func: () => string }): Promise<{ result?: string }[]>;
  };
};

async function selection(): Promise<string> {
  const [tab] = await chrome.tabs.query({ active: true, currentWindow: true });
  if (tab?.id === undefined) return "";
  // Fails for pages that extensions may not read, such as chrome://settings.
  const [frame] = await chrome.scripting
    .executeScript({ target: { tabId: tab.id }, func: () => String(getSelection()) })
    .catch(() => []);
  return frame?.result ?? "";
}

const ID = "popup";
const question = input("question");
question.value = await selection();
const engine = journalled(await Engine.load("./bundle/"));

async function read(events: AsyncIterable<GenerationEvent>): Promise<void> {
  show("answer", "");
  for await (const { text } of events) element("answer").append(text);
  await engine.journals.delete(ID);
  show("status", "answered");
}

if ((await engine.journals.find(ID)) !== null) {
  const kept = await engine.journals.resume(ID);
  if (kept.api === "generate") await read(kept.answer);
}
ready();

element("form").onsubmit = async (event) => {
  event.preventDefault();
  await read(engine.generate(question.value, { id: ID }));
};

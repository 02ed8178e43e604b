// The popup of a Chrome extension. The question starts with the text that is selected in the tab. The bundle is a
// folder of the extension, so nothing is sent anywhere.

import { Engine } from "@nearfar/web";

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

const question = input("question");
question.value = await selection();
const engine = await Engine.load("./bundle/");
ready();

element("form").onsubmit = async (event) => {
  event.preventDefault();
  show("answer", "");
  for await (const { text } of engine.generate(question.value)) element("answer").append(text);
  show("status", "answered");
};

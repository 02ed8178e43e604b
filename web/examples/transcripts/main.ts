// Writes down what is said in a file. A line plays what it says, and is bold while it is heard.

import { Engine } from "@nearfar/web";

import { element, input, show } from "../page.js";

const engine = await Engine.load("./whisper/");
const player = element("player") as HTMLAudioElement;
let segments: { readonly start: number; readonly end: number; readonly line: HTMLElement }[] = [];
show("status", "ready");

input("file").onchange = async () => {
  const [file] = input("file").files ?? [];
  if (file === undefined) return;
  player.src = URL.createObjectURL(file);
  segments = [];
  element("segments").replaceChildren();
  show("status", "transcribing");
  try {
    for await (const segment of await engine.transcribe(file, { stream: true, timestamps: true })) add(segment);
    show("status", `${segments.length} segments`);
  } catch (error) {
    show("status", String(error));
  }
};

player.ontimeupdate = () => {
  const now = player.currentTime;
  for (const { start, end, line } of segments) line.style.fontWeight = start <= now && now < end ? "bold" : "";
};

function add({ start, end, text }: { readonly start: number; readonly end: number; readonly text: string }): void {
  const line = document.createElement("li");
  const button = document.createElement("button");
  button.textContent = `${start.toFixed(1)} s`;
  button.onclick = () => {
    player.currentTime = start;
    void player.play();
  };
  line.append(button, text);
  element("segments").append(line);
  segments.push({ start, end, line });
}

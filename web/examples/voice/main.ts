// A conversation by voice: a Whisper hears, the model answers, the browser speaks. Talk while it speaks to interrupt it.

import { Engine } from "@nearfar/web";
import { openMicrophone } from "@nearfar/web/audio";
import { browserSpeaker, createVoice } from "@nearfar/web/voice";

import { element, show } from "../page.js";

const voice = createVoice({
  transcriber: await Engine.load("./whisper/"),
  chat: await Engine.load("./bundle/"),
  speaker: browserSpeaker(),
  params: { temperature: 0, max_tokens: 200 },
  onEvent: (event) => {
    if (event.type === "state") show("status", event.state);
    else if (event.type === "partial" || event.type === "heard") show("said", event.text);
    else if (event.type === "answer") show("answer", event.text);
    else if (event.type === "turn")
      show("time", `first sound after ${((event.timings.firstSoundMs ?? 0) / 1000).toFixed(1)} s`);
    else if (event.type === "error") show("answer", String(event.error));
  },
});
element("talk").toggleAttribute("disabled", false);
show("status", "ready");

element("talk").onclick = async () => {
  try {
    const microphone = await openMicrophone();
    await voice.run(microphone);
    for (const track of microphone.getTracks()) track.stop();
  } catch (error) {
    show("status", String(error));
  }
};
element("stop").onclick = () => {
  voice.stop();
};

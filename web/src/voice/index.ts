// @nearfar/web/voice: a conversation by voice. It is a separate file, voice.js, beside audio.js.

export type { Speaker, Speech } from "./speaker.js";
export type {
  BrowserSpeakerOptions,
  FarSpeakerOptions,
  KokoroModel,
  KokoroModule,
  KokoroSpeakerOptions,
} from "./speakers.js";
export { browserSpeaker, farSpeaker, kokoroSpeaker } from "./speakers.js";
export type { TurnTimings, VoiceChat, VoiceParts } from "./turn.js";
export type { Voice, VoiceEvent, VoiceOptions, VoiceState } from "./voice.js";
export { createVoice } from "./voice.js";
export type { ActivityChange, ActivityOptions } from "./voice_activity.js";
export { VoiceActivity } from "./voice_activity.js";

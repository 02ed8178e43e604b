// Reads files of videos. This is a separate file, videos.js, which an engine imports with the first one.

export type { VideoFrames } from "./decode.js";
export { openVideo } from "./decode.js";

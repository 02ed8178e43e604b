// @nearfar/react-native: the engine of @nearfar/web in a React Native app, on onnxruntime-react-native.

export type { Engine, EngineInfo } from "../../../web/src/engine.js";
export type { ErrorCode, ErrorDetails } from "../../../web/src/errors.js";
export { BundleError, DeviceError, NearfarError, RequestError, StorageError } from "../../../web/src/errors.js";
export type { GenerateOptions, GenerationEvent, Timings } from "../../../web/src/generation.js";
export type { LoadProgress } from "../../../web/src/load_options.js";
export type { Session, SessionOptions } from "../../../web/src/session.js";
export type { Message } from "../../../web/src/text/chat_template.js";
export type { ExpoFileSystem } from "./expo_files.js";
export { expoFiles } from "./expo_files.js";
export type { FileSystem } from "./file_system.js";
export type { AppState, FollowOptions } from "./follow_app.js";
export { followApp } from "./follow_app.js";
export type { PhoneOptions } from "./load.js";
export { load, removeBundle } from "./load.js";
export type { Rnfs } from "./rnfs_files.js";
export { rnfsFiles } from "./rnfs_files.js";

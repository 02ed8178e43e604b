// @nearfar/web/choose-encoder: of several encoders with the same model, the fastest for each request, by measurement.

export type { ErrorCode, ErrorDetails, ErrorJson } from "../../errors.js";
export { BundleError, NearfarError, RequestError, Unavailable } from "../../errors.js";
export type { Notes } from "../../runtime/notes.js";
export type { EncoderCandidate, ExtractionOptions, FeatureExtractor } from "./candidate.js";
export { clientCandidate, pipelineCandidate } from "./candidate.js";
export type { ChooseOptions, ChosenEmbeddings, RefusedCandidate } from "./choose_encoder.js";
export { ChosenEncoder, chooseEncoder } from "./choose_encoder.js";
export type { SampleMeasurement } from "./measurement.js";

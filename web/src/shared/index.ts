// What Python evaluates of this package in QuickJS: one file without DOM, modules or input and output. Its functions
// receive and return JSON texts.

import { BundleError, NearfarError, RequestError, Unavailable, messageOf } from "../errors.js";
import {
  afterCall,
  afterStep,
  answerBegun,
  isOutOfTokens,
  judgeCall,
  nextStep,
  offered,
  openLoop,
} from "./agent/loop.js";
import { contentText } from "./agent/results.js";
import { allowOf, defaultAllow, listTools, requireApproval } from "./agent/tools.js";
import { BOUNDS, fileMarks, openFile, requireFew, transcriptText, unheard } from "./attachments.js";
import type { TemplateParts } from "./chat.js";
import { renderChat } from "./chat.js";
import { checkMasks, checkSides } from "./decision/contradictions.js";
import { isSpent, paidUsd, spentOn } from "./decision/costs.js";
import { refusal } from "./decision/decision.js";
import { describing, describedText, undescribed } from "./decision/description.js";
import { textFeatures, textTerms } from "./decision/features.js";
import type { NearSignals } from "./decision/near_signals.js";
import { nearSignals } from "./decision/near_signals.js";
import { patternSource } from "./decision/pattern.js";
import { chooseBy, chooseDescribedBy, keepPolicy, rulesBy } from "./decision/policies.js";
import { parsePolicy } from "./decision/policy.js";
import type { Predictor } from "./decision/policy_schema.js";
import { featureNames, predictRights } from "./decision/predictor.js";
import { requestTexts } from "./decision/private_texts.js";
import { speedAfter } from "./decision/speed.js";
import { notText, unreadableKind } from "./file_kinds.js";
import { filesToLoad } from "./files_to_load.js";
import type { ServerSource } from "./grammar/rules.js";
import { sourceRules } from "./grammar/rules.js";
import { wrongImages } from "./images/check.js";
import { imageKeyHead } from "./images/key.js";
import { unreadablePicture } from "./images/kind.js";
import { imageLayout } from "./images/layout.js";
import { soundKeyHead, soundLayout, wrongSounds } from "./sounds.js";
import { entitiesOf, searchedWindows } from "./masks/entities.js";
import { kindsOfLabels, kindsOfPolicy } from "./masks/kinds.js";
import { hasMasked, maskMessages, maskText, maskableTexts } from "./masks/mask_request.js";
import { restore, restoredCitations } from "./masks/restorer.js";
import { leavingTexts, strictRequest, unmaskedTexts } from "./masks/strict.js";
import { axisTaps } from "./images/positions.js";
import { labelSpans } from "./label_spans.js";
import { checkReading, readDecisions } from "./questions/answers.js";
import { fitCalibration } from "./questions/calibration.js";
import { calibrationFor, handedOver, merged } from "./questions/escalation.js";
import { headLogprobs, headPrompts, headState } from "./questions/head.js";
import { requireDistinct } from "./questions/questions.js";
import { bundleText, canonicalJson, requestSampling, requestText, signedText } from "./receipt.js";
import {
  answerFailure,
  answerTimedSide,
  closeAnswer,
  failAnswer,
  openAnswer,
  stepAnswer,
  watchAnswer,
} from "./router/answers.js";
import { continuesAsTokens, setsTemplateVariables } from "./router/continuation.js";
import { sideFault } from "./router/failures.js";
import { totalUsage } from "./router/usage.js";
import { chooseOffers } from "./offers.js";
import { LACKING_METHODS } from "./template/attributes.js";
import { wrongPart } from "./template/check_tree.js";
import { FILTERS, OPEN_FILTERS } from "./template/filters.js";
import { LACKING_FUNCTIONS } from "./template/globals.js";
import { TESTS } from "./template/tests.js";
import { loads } from "./template/json.js";
import type { Value } from "./template/values.js";
import { Dict, Unsupported, isList, str } from "./template/values.js";
import { rowWindows, withRows, wordSegments } from "./transcription/ctc.js";
import { asSrt, asVtt } from "./transcription/formats.js";
import { nextTokens } from "./transcription/next_tokens.js";
import { rowsToRead } from "./transcription/rows_to_read.js";
import { checkTask, transcriptionPrompt } from "./transcription/speech.js";
import { heardText, hearingInstruction } from "./transcription/hearing.js";
import { TEMPERATURES, THRESHOLDS, cutWindow, judgeText, quietEnd } from "./transcription/windows.js";
import { videoKind } from "./videos/kind.js";
import { requireVideoBytes, videoLayout } from "./videos/layout.js";
import { zeroShotHypotheses, zeroShotProbabilities } from "./zero_shot.js";

/** A function of values as a function of JSON texts. For an exception it returns {error, message, details}. */
function overJson(run: (...values: never[]) => unknown): (...texts: readonly string[]) => string {
  return (...texts) => {
    try {
      return JSON.stringify(run(...texts.map((text) => JSON.parse(text) as never)) ?? null);
    } catch (error) {
      return JSON.stringify(asJson(error));
    }
  };
}

function asJson(error: unknown): object {
  const details = error instanceof NearfarError ? error.details : {};
  return { error: kindOf(error), message: messageOf(error), details };
}

function kindOf(error: unknown): string {
  if (error instanceof RequestError) return "request";
  if (error instanceof Unavailable) return "unavailable";
  if (!(error instanceof BundleError)) return "internal";
  return error.cause instanceof Unsupported ? "unsupported" : "template";
}

/** The names that templates may use here. */
function supported(): object {
  return {
    filters: [...Object.keys(FILTERS), ...OPEN_FILTERS],
    tests: Object.keys(TESTS),
    lacking_methods: LACKING_METHODS,
    lacking_functions: LACKING_FUNCTIONS,
  };
}

/**
 * Renders a chat: {text}, or {error, message} with the kind of the error. ``chat``: {messages, tools, variables,
 * add_generation_prompt}. ``now``: year, month, and so on to milliseconds.
 */
function render(template: string, chat: string, now: string): string {
  const read = loads(chat);
  const part = (name: string): Value => (read instanceof Dict ? (read.get(name) ?? null) : null);
  const [messages, tools, variables] = [part("messages"), part("tools"), part("variables")];
  const pairs = variables instanceof Dict ? variables.pairs() : [];
  const [year = 0, month = 1, ...rest] = JSON.parse(now) as readonly number[];
  try {
    const date = new Date(year, month - 1, ...rest);
    const given = {
      messages: isList(messages) ? messages : [],
      tools: isList(tools) ? tools : null,
      variables: new Map(Array.from(pairs, ([name, value]) => [str(name), value])),
      addGenerationPrompt: part("add_generation_prompt") === true,
    };
    return JSON.stringify({ text: renderChat(JSON.parse(template) as TemplateParts, given, date) });
  } catch (error) {
    return JSON.stringify(asJson(error));
  }
}

/** ``requestTexts`` of a request's JSON, whose large integers keep all of their digits. */
function privateTexts(request: string, contents: string): string {
  const exact = (_: string, value: unknown, { source }: { readonly source: string }): unknown =>
    typeof value === "number" && Math.abs(value) > 2 ** 53 && /^-?[0-9]+$/.test(source) ? BigInt(source) : value;
  const read = JSON.parse(request, exact as never) as Record<string, unknown>;
  return JSON.stringify(requestTexts(read, JSON.parse(contents) as readonly string[]));
}

/** The error of a decision without a side, as `overJson` returns it. */
function refused(...decided: Parameters<typeof refusal>): never {
  throw refusal(...decided);
}

/** The error of media without a description, likewise. */
function failedDescription(...failed: Parameters<typeof undescribed>): never {
  throw undescribed(...failed);
}

/** The error of a recording that nothing transcribes, as `overJson` returns it. */
function unheardRecording(...given: Parameters<typeof unheard>): never {
  throw unheard(...given);
}

/** The rights of several texts, each with its signals and vector. */
function rightsOf(
  predictor: Predictor,
  texts: readonly (readonly [string, NearSignals | null, readonly number[] | null])[],
): object {
  return texts.map((text) => predictRights(predictor, ...text));
}

Object.assign(globalThis, {
  nearfar: {
    supported: overJson(supported),
    render,
    wrongTreePart: overJson(wrongPart),
    grammarRules: overJson((source: ServerSource) => sourceRules(source, false)),
    readPolicy: overJson(parsePolicy),
    keepPolicy: overJson(keepPolicy),
    choose: overJson(chooseBy),
    chooseDescribed: overJson(chooseDescribedBy),
    describing: overJson(describing),
    describedText: overJson(describedText),
    undescribed: overJson(failedDescription),
    rulesOf: overJson(rulesBy),
    checkSides: overJson(checkSides),
    checkMasks: overJson(checkMasks),
    refusal: overJson(refused),
    rights: overJson(rightsOf),
    featureNames: overJson(featureNames),
    textInputs: overJson((text: string) => ({ features: textFeatures(text), terms: textTerms(text) })),
    nearSignals: overJson(nearSignals),
    speedAfter: overJson(speedAfter),
    isSpent: overJson(isSpent),
    spentOn: overJson(spentOn),
    filesToLoad: overJson(filesToLoad),
    notText: overJson(notText),
    unreadableKind: overJson(unreadableKind),
    paidUsd: overJson(paidUsd),
    patternSource: overJson(patternSource),
    privateTexts,
    maskableTexts: overJson(maskableTexts),
    maskMessages: overJson(maskMessages),
    maskText: overJson(maskText),
    hasMasked: overJson(hasMasked),
    restore: overJson(restore),
    restoredCitations: overJson(restoredCitations),
    strictRequest: overJson(strictRequest),
    leavingTexts: overJson(leavingTexts),
    unmaskedTexts: overJson(unmaskedTexts),
    searchedWindows: overJson(searchedWindows),
    entitiesOf: overJson(entitiesOf),
    kindsOfPolicy: overJson(kindsOfPolicy),
    kindsOfLabels: overJson(kindsOfLabels),
    openAnswer: overJson(openAnswer),
    stepAnswer: overJson(stepAnswer),
    watchAnswer: overJson(watchAnswer),
    answerFailure: overJson(answerFailure),
    failAnswer: overJson(failAnswer),
    answerTimedSide: overJson(answerTimedSide),
    closeAnswer: overJson(closeAnswer),
    totalUsage: overJson(totalUsage),
    labelSpans: overJson(labelSpans),
    attachmentBounds: overJson(() => BOUNDS),
    openFile: overJson(openFile),
    fileMarks: overJson(fileMarks),
    requireFew: overJson(requireFew),
    transcriptText: overJson(transcriptText),
    unheard: overJson(unheardRecording),
    imageLayout: overJson(imageLayout),
    soundLayout: overJson(soundLayout),
    wrongSounds: overJson(wrongSounds),
    soundKeyHead: overJson(soundKeyHead),
    wrongImages: overJson(wrongImages),
    axisTaps: overJson(axisTaps),
    imageKeyHead: overJson(imageKeyHead),
    unreadablePicture: overJson(unreadablePicture),
    videoKind: overJson(videoKind),
    videoLayout: overJson(videoLayout),
    requireVideoBytes: overJson(requireVideoBytes),
    sideFault: overJson(sideFault),
    checkTask: overJson(checkTask),
    transcriptionPrompt: overJson(transcriptionPrompt),
    transcriptionLimits: overJson(() => ({ temperatures: TEMPERATURES, thresholds: THRESHOLDS })),
    nextTokens: overJson(nextTokens),
    cutWindow: overJson(cutWindow),
    judgeText: overJson(judgeText),
    quietEnd: overJson(quietEnd),
    rowsToRead: overJson(rowsToRead),
    hearingInstruction: overJson(hearingInstruction),
    heardText: overJson(heardText),
    rowWindows: overJson(rowWindows),
    withRows: overJson(withRows),
    wordSegments: overJson(wordSegments),
    asSrt: overJson(asSrt),
    asVtt: overJson(asVtt),
    continuesAsTokens: overJson(continuesAsTokens),
    setsTemplateVariables: overJson(setsTemplateVariables),
    zeroShotHypotheses: overJson(zeroShotHypotheses),
    zeroShotProbabilities: overJson(zeroShotProbabilities),
    askedQuestions: overJson(checkReading),
    requireDistinct: overJson(requireDistinct),
    readDecisions: overJson(readDecisions),
    headState: overJson(headState),
    headPrompts: overJson(headPrompts),
    headLogprobs: overJson(headLogprobs),
    handedOver: overJson(handedOver),
    mergedDecisions: overJson(merged),
    calibrationFor: overJson(calibrationFor),
    chooseOffers: overJson(chooseOffers),
    fitCalibration: overJson(fitCalibration),
    canonicalJson: overJson(canonicalJson),
    requestText: overJson(requestText),
    requestSampling: overJson(requestSampling),
    signedText: overJson(signedText),
    bundleText: overJson(bundleText),
    agentTools: overJson(listTools),
    agentAllow: overJson(allowOf),
    agentDefaultAllow: overJson(defaultAllow),
    agentApproval: overJson(requireApproval),
    agentOpen: overJson(openLoop),
    agentOffered: overJson(offered),
    agentNextStep: overJson(nextStep),
    agentOutOfTokens: overJson(isOutOfTokens),
    agentAfterStep: overJson(afterStep),
    agentAnswerBegun: overJson(answerBegun),
    agentJudge: overJson(judgeCall),
    agentAfterCall: overJson(afterCall),
    agentContentText: overJson(contentText),
  },
});

// What is known about platforms, as data: how to recognize them, and how much memory a page may use there.

/** The part of the browser's navigator that rules read. */
export interface Platform {
  readonly userAgent?: string;
  readonly maxTouchPoints?: number;
  /** In GB, rounded to a power of two (W3C, Device Memory). Chromium only. */
  readonly deviceMemory?: number;
  readonly hardwareConcurrency?: number;
}

/**
 * A rule applies if all of its conditions hold: ``userAgent`` matches, there are at least so many ``touchPoints``, and
 * the device has at most ``memoryGb``. ``share``: the part of the device's memory that a model may take there, and
 * ``bytes``: the most that it may take. ``source`` says why.
 */
export interface PlatformRule {
  readonly name: string;
  readonly userAgent?: RegExp;
  readonly touchPoints?: number;
  readonly memoryGb?: number;
  readonly bytes?: number;
  readonly share?: number;
  readonly advice: string;
  readonly source: string;
}

const GIB = 2 ** 30;

export const PLATFORM_RULES: readonly PlatformRule[] = [
  {
    // The process that draws the page is ended beyond 1.5 GB; the page, its scripts and copies of shards need a part.
    name: "ios",
    userAgent: /\b(?:iPhone|iPad|iPod)\b/,
    bytes: 1.1 * GIB,
    advice: "iOS ends a page that takes more memory",
    source: "https://github.com/WebKit/WebKit/pull/49472",
  },
  {
    // iPads name themselves Macs.
    name: "ipad",
    userAgent: /\bMacintosh\b/,
    touchPoints: 2,
    bytes: 1.1 * GIB,
    advice: "iPadOS ends a page that takes more memory",
    source: "https://github.com/WebKit/WebKit/pull/49472",
  },
  {
    // Their own views of the system's browser, or of one that they bring.
    name: "in-app",
    userAgent:
      /\b(?:FBAN|FBAV|FB_IAB|Instagram|Line|MicroMessenger|BytedanceWebview|musical_ly|Snapchat|LinkedInApp)\b|; wv\)/,
    bytes: 0.75 * GIB,
    advice: "this browser is a part of an app, which shares its memory; open the page in the device's own browser",
    source: "https://github.com/faisalman/ua-parser-js (in-app browsers)",
  },
  {
    name: "low-memory",
    memoryGb: 4,
    share: 0.4,
    advice: "the device has little memory, which the browser and the system share",
    source: "https://developer.mozilla.org/docs/Web/API/Navigator/deviceMemory",
  },
];

/** The rules that apply to a platform. */
export function rulesOf(
  { userAgent = "", maxTouchPoints = 0, deviceMemory = Infinity }: Platform,
  rules: readonly PlatformRule[] = PLATFORM_RULES,
): readonly PlatformRule[] {
  return rules.filter(
    (rule) =>
      (rule.userAgent?.test(userAgent) ?? true) &&
      maxTouchPoints >= (rule.touchPoints ?? 0) &&
      deviceMemory <= (rule.memoryGb ?? Infinity),
  );
}

/** The most bytes that these rules allow a model, and the rule that does; null if they do not limit it. */
export function memoryLimit(
  rules: readonly PlatformRule[],
  { deviceMemory = Infinity }: Platform,
): { readonly bytes: number; readonly rule: PlatformRule } | null {
  const limits = rules.map((rule) => ({
    rule,
    bytes: Math.floor(Math.min(rule.bytes ?? Infinity, (rule.share ?? Infinity) * deviceMemory * GIB)),
  }));
  const [least] = limits.sort((a, b) => a.bytes - b.bytes);
  return least === undefined || least.bytes === Infinity ? null : least;
}

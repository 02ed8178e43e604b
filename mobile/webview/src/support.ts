// Checks whether a model can run in this web view, before anything is loaded.

import { DeviceError } from "@nearfar/web/calls";

/** The part of the global scope that is checked. */
export interface SupportScope {
  readonly isSecureContext?: boolean;
  readonly location?: { readonly protocol: string; readonly origin: string };
  readonly navigator?: {
    readonly userAgent: string;
    readonly maxTouchPoints?: number;
    readonly gpu?: { requestAdapter(): Promise<unknown> } | undefined;
  };
}

// WebKit for iOS 26 and Chromium 121 are the first versions with WebGPU in web views, according to MDN's
// browser-compat-data (api/GPU.json).
const NEEDS = {
  ios: "iOS 26 or later",
  android: "Android 12 or later with Android System WebView 121 or later, on a GPU that it lets WebGPU use",
  other: "a web view with WebGPU",
} as const;

/** Why no model can run here, and what is needed; null if a model can run. */
export async function supportProblem(scope = globalThis as SupportScope): Promise<DeviceError | null> {
  const { isSecureContext = true, location, navigator } = scope;
  const origin = location?.protocol === "file:" ? "file:" : (location?.origin ?? "");
  if (!isSecureContext || origin === "file:") {
    return new DeviceError(
      `The page's origin '${origin}' may not use WebGPU or fetch its files; serve it from a WKURLSchemeHandler, ` +
        "a WebViewAssetLoader, Capacitor's server or https",
      { missing: "secure context", origin },
    );
  }
  const needs = NEEDS[platformOf(navigator)];
  if (navigator?.gpu === undefined) {
    return new DeviceError(`This web view has no WebGPU; it needs ${needs}`, { missing: "navigator.gpu", needs });
  }
  const adapter = await navigator.gpu.requestAdapter().catch(() => null);
  if (adapter !== null) return null;
  return new DeviceError(
    `This web view has WebGPU but no adapter for it; it needs ${needs}, with hardware acceleration enabled`,
    { missing: "adapter", needs },
  );
}

function platformOf(navigator: SupportScope["navigator"]): keyof typeof NEEDS {
  const { userAgent = "", maxTouchPoints = 0 } = navigator ?? {};
  // An iPad identifies itself as a Macintosh, but a Macintosh has no touch screen.
  if (/iPhone|iPad|iPod/.test(userAgent) || (userAgent.includes("Macintosh") && maxTouchPoints > 1)) return "ios";
  return userAgent.includes("Android") ? "android" : "other";
}

// The platform's report about this device: whether there is a network, and the state of the battery. Unknown values are
// null.

export type Thermal = "nominal" | "fair" | "serious" | "critical";

export interface DeviceHints {
  readonly online: boolean;
  /** From 0 to 1. */
  readonly battery: number | null;
  readonly charging: boolean | null;
  /** Browsers do not report it; an app around the page may. */
  readonly thermal: Thermal | null;
}

export interface DeviceSource {
  read(): Promise<DeviceHints>;
}

interface BatteryNavigator {
  readonly onLine?: boolean;
  /** Chromium only, and on secure pages only. */
  getBattery?(): Promise<{ readonly level: number; readonly charging: boolean }>;
}

/** Hints of the browser, or of any object like its navigator. */
export function platformDevice(
  navigator: BatteryNavigator = (globalThis as { readonly navigator?: BatteryNavigator }).navigator ?? {},
): DeviceSource {
  return {
    read: async () => {
      // The battery object stays up to date, and every call returns the same one.
      const battery = (await navigator.getBattery?.().catch(() => null)) ?? null;
      return {
        online: navigator.onLine !== false,
        battery: battery?.level ?? null,
        charging: battery?.charging ?? null,
        thermal: null,
      };
    },
  };
}

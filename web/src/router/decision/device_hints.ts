// What the platform tells of this device: whether there is a network, how full the battery is. What it does not tell is null.

export type Thermal = "nominal" | "fair" | "serious" | "critical";

export interface DeviceHints {
  readonly online: boolean;
  /** 0 to 1. */
  readonly battery: number | null;
  readonly charging: boolean | null;
  /** No browser tells it; an app around the page may. */
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

/** Hints of the browser, or of whatever has a navigator as browsers do. */
export function platformDevice(
  navigator: BatteryNavigator = (globalThis as { readonly navigator?: BatteryNavigator }).navigator ?? {},
): DeviceSource {
  return {
    read: async () => {
      // Its object stays up to date, and asking for it again gives the same.
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

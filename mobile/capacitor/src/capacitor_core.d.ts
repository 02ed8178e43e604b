// The part of @capacitor/core (8) that this package uses, because these builds do not install it.

declare module "@capacitor/core" {
  // oxlint-disable-next-line typescript/no-unnecessary-type-parameters -- As in the package.
  export function registerPlugin<Plugin>(name: string): Plugin;
  export const Capacitor: {
    isNativePlatform(): boolean;
    /** An address of the app's own origin for a file of the device. */
    convertFileSrc(path: string): string;
  };
}

// The part of expo (SDK 54 to 58) that this package uses, because these builds do not install it.

declare module "expo" {
  // oxlint-disable-next-line typescript/no-unnecessary-type-parameters -- As in the package.
  export function requireNativeModule<Module>(name: string): Module;
}

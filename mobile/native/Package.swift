// swift-tools-version: 5.9
// The native side of apps without Capacitor or Expo.
import PackageDescription

let package = Package(
    name: "Nearfar",
    platforms: [.iOS(.v15)],
    products: [
        .library(name: "Nearfar", targets: ["Nearfar"])
    ],
    targets: [
        .target(name: "Nearfar", path: "ios/Sources/Nearfar")
    ]
)

// swift-tools-version: 5.9
// Capacitor's command line adds this package to an app's; it expects this name.
import PackageDescription

let package = Package(
    name: "NearfarCapacitor",
    platforms: [.iOS(.v15)],
    products: [
        .library(name: "NearfarCapacitor", targets: ["NearfarPlugin", "Nearfar"])
    ],
    dependencies: [
        .package(url: "https://github.com/ionic-team/capacitor-swift-pm.git", from: "8.0.0")
    ],
    targets: [
        .target(name: "Nearfar", path: "native/ios"),
        .target(
            name: "NearfarPlugin",
            dependencies: [
                "Nearfar",
                .product(name: "Capacitor", package: "capacitor-swift-pm"),
                .product(name: "Cordova", package: "capacitor-swift-pm"),
            ],
            path: "ios/Sources/NearfarPlugin"
        ),
    ]
)

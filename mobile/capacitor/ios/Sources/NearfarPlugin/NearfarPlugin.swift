// The Capacitor plugin: passes JavaScript's calls to BundleDownloads, and its reports to JavaScript.

import Capacitor
import Foundation
import Nearfar

@objc(NearfarPlugin)
public class NearfarPlugin: CAPPlugin, CAPBridgedPlugin {
    public let identifier = "NearfarPlugin"
    public let jsName = "Nearfar"
    public let pluginMethods: [CAPPluginMethod] = [
        CAPPluginMethod(name: "start", returnType: CAPPluginReturnPromise),
        CAPPluginMethod(name: "stop", returnType: CAPPluginReturnPromise),
        CAPPluginMethod(name: "remove", returnType: CAPPluginReturnPromise),
        CAPPluginMethod(name: "stored", returnType: CAPPluginReturnPromise),
    ]

    override public func load() {
        BundleDownloads.shared.listen { [weak self] state in
            self?.notifyListeners("download", data: ["state": state])
        }
    }

    @objc func start(_ call: CAPPluginCall) {
        answer(call) {
            try await BundleDownloads.shared.start(Self.required(call, "job"))
            return [:]
        }
    }

    @objc func stop(_ call: CAPPluginCall) {
        answer(call) {
            await BundleDownloads.shared.stop(try Self.required(call, "id"))
            return [:]
        }
    }

    @objc func remove(_ call: CAPPluginCall) {
        answer(call) {
            try await BundleDownloads.shared.remove(Self.required(call, "id"), record: call.getString("record"))
            return [:]
        }
    }

    @objc func stored(_ call: CAPPluginCall) {
        answer(call) {
            let manifest = try BundleDownloads.shared.stored(Self.required(call, "record"))
            return manifest.map { ["manifest": $0] } ?? [:]
        }
    }

    private static func required(_ call: CAPPluginCall, _ name: String) throws -> String {
        guard let value = call.getString(name) else {
            throw DownloadError(code: "request_error", message: "The call has no \(name)")
        }
        return value
    }

    private func answer(_ call: CAPPluginCall, _ work: @escaping () async throws -> [String: Any]) {
        Task {
            do {
                call.resolve(try await work())
            } catch let error as DownloadError {
                call.reject(error.message, error.code)
            } catch {
                call.reject("The download cannot be changed (\(error))", "bundle_error", error)
            }
        }
    }
}

// The Expo module: passes JavaScript's calls to BundleDownloads, and its reports to JavaScript.

import ExpoModulesCore

public class NearfarModule: Module {
    public func definition() -> ModuleDefinition {
        Name("Nearfar")

        Events("download")

        OnCreate {
            BundleDownloads.shared.listen { [weak self] state in
                self?.sendEvent("download", ["state": state])
            }
        }

        AsyncFunction("start") { (job: String) in
            try await Self.withCode { try await BundleDownloads.shared.start(job) }
        }

        AsyncFunction("stop") { (id: String) in
            await BundleDownloads.shared.stop(id)
        }

        AsyncFunction("remove") { (id: String, record: String?) in
            try await Self.withCode { try await BundleDownloads.shared.remove(id, record: record) }
        }

        AsyncFunction("stored") { (record: String) async throws -> String? in
            try await Self.withCode { try BundleDownloads.shared.stored(record) }
        }
    }

    private static func withCode<Value>(_ work: () async throws -> Value) async throws -> Value {
        do {
            return try await work()
        } catch let error as DownloadError {
            throw Exception(name: "DownloadError", description: error.message, code: error.code)
        }
    }
}

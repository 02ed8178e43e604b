// A download as JavaScript describes it (mobile/native/src/native_downloads.ts), and where its files are.

import CryptoKit
import Foundation

/// A failure that trying again does not mend, with a code of web/src/errors.ts.
public struct DownloadError: Error {
    public let code: String
    public let message: String
    let details: [String: Any]

    public init(code: String, message: String) {
        self.init(code, message)
    }

    init(_ code: String, _ message: String, details: [String: Any] = [:]) {
        self.code = code
        self.message = message
        self.details = details
    }
}

struct FileEntry: Decodable {
    let url: URL
    let file: String
    /// The manifest gives no size for kernels, which are small.
    let size: Int64?
    let sha256: String
}

struct DownloadJob: Decodable {
    let id: String
    let files: [FileEntry]
    let manifest: String?
    let record: String?
    let wifiOnly: Bool

    /// Throws DownloadError. A name is a relative path without "..": a manifest of another server chooses it.
    init(text: Data) throws {
        do {
            self = try JSONDecoder().decode(DownloadJob.self, from: text)
        } catch {
            throw DownloadError("request_error", "The download cannot be read (\(error))")
        }
        for entry in files {
            let parts = entry.file.split(separator: "/", omittingEmptySubsequences: false)
            if entry.file.contains("\\") || parts.contains(where: { ["", ".", ".."].contains($0) }) {
                throw DownloadError("bundle_error", "\(entry.file): is not a file's name; compile the bundle again")
            }
        }
    }
}

/// The folder of all bundles. @nearfar/react-native has its files there, too.
struct BundleFolders {
    let root: URL

    init() {
        let documents = FileManager.default.urls(for: .documentDirectory, in: .userDomainMask)[0]
        root = documents.appendingPathComponent("nearfar", isDirectory: true)
    }

    func bundle(_ id: String) throws -> URL { try at(id) }

    /// The text of a job: iOS may start the app to report a download.
    func job(_ id: String) throws -> URL { try at(id, in: "jobs", type: "json") }

    /// What continues an interrupted file.
    func resumeData(_ id: String, _ index: Int) throws -> URL { try at(id, in: "jobs", type: "\(index).resume") }

    /// The manifest of the bundle at an address.
    func record(_ name: String) throws -> URL { try at(name, type: "json") }

    /// Creates the folder of all bundles, which is not for backups: it can be downloaded again.
    func create() throws {
        let jobs = root.appendingPathComponent("jobs", isDirectory: true)
        try FileManager.default.createDirectory(at: jobs, withIntermediateDirectories: true)
        var values = URLResourceValues()
        values.isExcludedFromBackup = true
        var folder = root
        try folder.setResourceValues(values)
    }

    private func at(_ name: String, in folder: String? = nil, type: String? = nil) throws -> URL {
        guard name.count == 64, name.allSatisfy({ "0123456789abcdef".contains($0) }) else {
            throw DownloadError("request_error", "\(name): is not a SHA-256")
        }
        let parent = folder.map { root.appendingPathComponent($0, isDirectory: true) } ?? root
        return parent.appendingPathComponent(type.map { "\(name).\($0)" } ?? name)
    }
}

extension URL {
    var fileBytes: Int64? {
        let size = try? FileManager.default.attributesOfItem(atPath: path)[.size]
        return (size as? NSNumber)?.int64Value
    }

    /// Of a file, piece by piece, in hexadecimal.
    func sha256() throws -> String {
        let handle = try FileHandle(forReadingFrom: self)
        defer { try? handle.close() }
        var hash = SHA256()
        // Each piece is freed before the next one is read.
        while try autoreleasepool(invoking: {
            guard let piece = try handle.read(upToCount: 1 << 20), !piece.isEmpty else { return false }
            hash.update(data: piece)
            return true
        }) {}
        return hash.finalize().map { String(format: "%02x", $0) }.joined()
    }
}

// iOS's own task that downloads a bundle: a background URLSession, which continues while the app is suspended, or after
// iOS has ended it. Files are checked by their SHA-256, also when iOS starts the app only to report them.
//
// The plugins for Capacitor and Expo call it with JavaScript's JSON texts.

import Foundation

/// Storage that stays free for other uses of the phone.
private let spareBytes: Int64 = 64 << 20
/// The minimum interval of progress reports.
private let reportSeconds = 0.1

/// All properties are used on `queue` only, which is also the queue of the session's delegate.
public final class BundleDownloads: NSObject, URLSessionDownloadDelegate, @unchecked Sendable {
    public static let sessionIdentifier = "org.nearfar.downloads"
    /// There is one, because a background session has one owner.
    public static let shared = BundleDownloads()

    /// A job with files that are missing.
    private final class Running {
        let job: DownloadJob
        let storedBytes: Int64
        var missing: Set<Int>
        /// The bytes of files that are being downloaded.
        var received: [Int: Int64] = [:]
        /// Files that were damaged once.
        var again = Set<Int>()
        var reported = Date.distantPast

        init(job: DownloadJob, missing: Set<Int>) {
            self.job = job
            self.missing = missing
            storedBytes = Running.bytes(of: job, without: missing)
        }

        var loadedBytes: Int64 {
            Running.bytes(of: job, without: missing) + received.values.reduce(0, +)
        }

        private static func bytes(of job: DownloadJob, without missing: Set<Int>) -> Int64 {
            job.files.indices.reduce(0) { $0 + (missing.contains($1) ? 0 : job.files[$1].size ?? 0) }
        }
    }

    private let queue = DispatchQueue(label: sessionIdentifier)
    private let folders = BundleFolders()
    private var running: [String: Running] = [:]
    private var report: (String) -> Void = { _ in }
    private var eventsEnd: (() -> Void)?
    private lazy var session: URLSession = {
        let configuration = URLSessionConfiguration.background(withIdentifier: Self.sessionIdentifier)
        configuration.sessionSendsLaunchEvents = true
        let delegateQueue = OperationQueue()
        delegateQueue.underlyingQueue = queue
        delegateQueue.maxConcurrentOperationCount = 1
        return URLSession(configuration: configuration, delegate: self, delegateQueue: delegateQueue)
    }()

    /// `report` receives each change of a download as the JSON of a DownloadState.
    public func listen(_ report: @escaping (String) -> Void) {
        queue.async { self.report = report }
    }

    /// Call it from the app delegate's handleEventsForBackgroundURLSession. Returns whether the session is this one.
    @discardableResult
    public func handleEvents(of identifier: String, completion: @escaping () -> Void) -> Bool {
        guard identifier == Self.sessionIdentifier else { return false }
        queue.async {
            self.eventsEnd = completion
            _ = self.session
        }
        return true
    }

    /// Starts a download or continues it; one that is running is joined. Throws DownloadError.
    public func start(_ text: String) async throws {
        let job = try DownloadJob(text: Data(text.utf8))
        let tasks = await self.tasks(of: job.id)
        try await onQueue {
            try self.folders.create()
            try Data(text.utf8).write(to: self.folders.job(job.id), options: .atomic)
            let running = try self.running[job.id] ?? Running(job: job, missing: self.missing(of: job))
            self.running[job.id] = running
            do {
                try self.requireRoom(running)
                for index in running.missing.sorted() where !tasks.contains(where: { $0.index == index }) {
                    try self.begin(index, of: running)
                }
                try self.finishIfComplete(running)
                if !running.missing.isEmpty { self.send(running, "running") }
            } catch {
                self.fail(running, error)
            }
        }
    }

    /// Stops a download. The bytes of its files stay where iOS can continue them.
    public func stop(_ id: String) async {
        let tasks = await self.tasks(of: id)
        queue.async { self.running[id] = nil }
        for (task, index) in tasks {
            let data = await task.cancelByProducingResumeData()
            queue.async { self.keep(data, id, index) }
        }
    }

    public func remove(_ id: String, record: String?) async throws {
        for (task, _) in await tasks(of: id) { task.cancel() }
        try await onQueue {
            self.running[id] = nil
            var files = [try self.folders.bundle(id), try self.folders.job(id)]
            if let record { files.append(try self.folders.record(record)) }
            let jobs = try self.folders.job(id).deletingLastPathComponent()
            let others = (try? FileManager.default.contentsOfDirectory(at: jobs, includingPropertiesForKeys: nil)) ?? []
            files += others.filter { $0.lastPathComponent.hasPrefix(id) }
            for file in files where FileManager.default.fileExists(atPath: file.path) {
                try FileManager.default.removeItem(at: file)
            }
        }
    }

    /// The manifest of the bundle that was stored for an address.
    public func stored(_ record: String) throws -> String? {
        let file = try folders.record(record)
        return try? String(contentsOf: file, encoding: .utf8)
    }

    // MARK: - The session's reports, on the queue

    public func urlSession(
        _: URLSession, downloadTask task: URLSessionDownloadTask, didWriteData _: Int64,
        totalBytesWritten: Int64, totalBytesExpectedToWrite _: Int64
    ) {
        guard let (running, index) = entry(of: task) else { return }
        running.received[index] = min(totalBytesWritten, running.job.files[index].size ?? 0)
        guard Date().timeIntervalSince(running.reported) >= reportSeconds else { return }
        send(running, "running")
    }

    /// iOS deletes the file at `location` when this returns.
    public func urlSession(
        _: URLSession, downloadTask task: URLSessionDownloadTask, didFinishDownloadingTo location: URL
    ) {
        guard let (running, index) = entry(of: task) else { return }
        let file = running.job.files[index]
        do {
            let status = (task.response as? HTTPURLResponse)?.statusCode ?? 0
            guard status == 200 || status == 206 else {
                let message = "\(file.file): \(file.url) answers \(status); check that the bundle is there"
                throw DownloadError("bundle_error", message, details: ["file": file.file, "status": status])
            }
            running.received[index] = nil
            let found = try location.sha256()
            if found == file.sha256 {
                try move(location, to: folders.bundle(running.job.id).appendingPathComponent(file.file))
                running.missing.remove(index)
                try finishIfComplete(running)
                if !running.missing.isEmpty { send(running, "running") }
            } else if running.again.insert(index).inserted {
                // A damaged file is downloaded once more from its start.
                try begin(index, of: running)
            } else {
                let message = "\(file.file): has SHA-256 \(found.prefix(12))..., the manifest says "
                    + "\(file.sha256.prefix(12))...; upload or compile the bundle again"
                throw DownloadError(
                    "bundle_error", message, details: ["file": file.file, "found": found, "expected": file.sha256]
                )
            }
        } catch {
            fail(running, error)
        }
    }

    public func urlSession(_: URLSession, task: URLSessionTask, didCompleteWithError error: Error?) {
        guard let error = error as NSError?, let (id, index) = name(of: task) else { return }
        keep(error.userInfo[NSURLSessionDownloadTaskResumeData] as? Data, id, index)
        guard error.code != NSURLErrorCancelled, let running = self.running[id] else { return }
        let message = "\(running.job.files[index].file): cannot be fetched (\(error.localizedDescription)); "
            + "check the connection and load again"
        fail(running, DownloadError("bundle_error", message, details: ["file": running.job.files[index].file]))
    }

    public func urlSessionDidFinishEvents(forBackgroundURLSession _: URLSession) {
        let end = eventsEnd
        eventsEnd = nil
        DispatchQueue.main.async { end?() }
    }

    // MARK: - Files and tasks, on the queue

    private func begin(_ index: Int, of running: Running) throws {
        let kept = try folders.resumeData(running.job.id, index)
        let task: URLSessionDownloadTask
        if let data = try? Data(contentsOf: kept) {
            try FileManager.default.removeItem(at: kept)
            task = session.downloadTask(withResumeData: data)
        } else {
            var request = URLRequest(url: running.job.files[index].url)
            request.allowsExpensiveNetworkAccess = !running.job.wifiOnly
            // The sizes of the manifest are those of the plain file.
            request.setValue("identity", forHTTPHeaderField: "Accept-Encoding")
            task = session.downloadTask(with: request)
        }
        task.taskDescription = "\(running.job.id) \(index)"
        task.resume()
    }

    private func keep(_ data: Data?, _ id: String, _ index: Int) {
        guard let data, let file = try? folders.resumeData(id, index) else { return }
        try? data.write(to: file, options: .atomic)
    }

    /// After iOS started the app again, the job is read from its file.
    private func entry(of task: URLSessionTask) -> (Running, Int)? {
        guard let (id, index) = name(of: task) else { return nil }
        if self.running[id] == nil, let text = try? Data(contentsOf: folders.job(id)),
           let job = try? DownloadJob(text: text), let missing = try? self.missing(of: job) {
            self.running[id] = Running(job: job, missing: missing)
        }
        guard let running = self.running[id], running.job.files.indices.contains(index) else { return nil }
        return (running, index)
    }

    private func name(of task: URLSessionTask) -> (String, Int)? {
        let parts = task.taskDescription?.split(separator: " ") ?? []
        guard parts.count == 2, let index = Int(parts[1]) else { return nil }
        return (String(parts[0]), index)
    }

    private func tasks(of id: String) async -> [(task: URLSessionDownloadTask, index: Int)] {
        let session = await withCheckedContinuation { continuation in
            queue.async { continuation.resume(returning: self.session) }
        }
        return await session.allTasks.compactMap { task -> (task: URLSessionDownloadTask, index: Int)? in
            guard let (owner, index) = name(of: task), owner == id, task.state == .running || task.state == .suspended,
                  let download = task as? URLSessionDownloadTask
            else { return nil }
            return (download, index)
        }
    }

    private func missing(of job: DownloadJob) throws -> Set<Int> {
        let folder = try folders.bundle(job.id)
        return Set(job.files.indices.filter { index in
            let found = folder.appendingPathComponent(job.files[index].file).fileBytes
            return found == nil || found != (job.files[index].size ?? found)
        })
    }

    private func requireRoom(_ running: Running) throws {
        let needed = running.missing.reduce(0) { $0 + (running.job.files[$1].size ?? 0) } + spareBytes
        let values = try folders.root.resourceValues(forKeys: [.volumeAvailableCapacityForImportantUsageKey])
        guard let available = values.volumeAvailableCapacityForImportantUsage, !running.missing.isEmpty,
              available < needed
        else { return }
        throw DownloadError(
            "storage_error",
            "The model needs \(needed / 1_000_000) MB more of this phone's storage, but only "
                + "\(available / 1_000_000) MB are free; free some storage and load again",
            details: ["neededBytes": needed, "availableBytes": available]
        )
    }

    private func move(_ from: URL, to target: URL) throws {
        let folder = target.deletingLastPathComponent()
        try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
        if FileManager.default.fileExists(atPath: target.path) { try FileManager.default.removeItem(at: target) }
        try FileManager.default.moveItem(at: from, to: target)
    }

    /// Makes the complete bundle known. The manifest comes last: a folder that has it is complete.
    private func finishIfComplete(_ running: Running) throws {
        guard running.missing.isEmpty else { return }
        let job = running.job
        if let manifest = job.manifest {
            let text = Data(manifest.utf8)
            try text.write(to: folders.bundle(job.id).appendingPathComponent("manifest.json"), options: .atomic)
            if let record = job.record { try text.write(to: folders.record(record), options: .atomic) }
        }
        try? FileManager.default.removeItem(at: folders.job(job.id))
        self.running[job.id] = nil
        send(running, "done")
    }

    private func fail(_ running: Running, _ error: Error) {
        self.running[running.job.id] = nil
        // Other files of the job continue: a later start needs them.
        send(running, "failed", error as? DownloadError ?? DownloadError("storage_error", "\(error)"))
    }

    private func send(_ running: Running, _ state: String, _ error: DownloadError? = nil) {
        running.reported = Date()
        guard let folder = try? folders.bundle(running.job.id) else { return }
        var json: [String: Any] = [
            "id": running.job.id, "state": state, "path": folder.path,
            "loadedBytes": running.loadedBytes, "storedBytes": running.storedBytes,
        ]
        if let error { json["error"] = ["code": error.code, "message": error.message, "details": error.details] }
        guard let data = try? JSONSerialization.data(withJSONObject: json) else { return }
        report(String(decoding: data, as: UTF8.self))
    }

    private func onQueue<Value>(_ work: @escaping () throws -> Value) async throws -> Value {
        try await withCheckedThrowingContinuation { continuation in
            queue.async { continuation.resume(with: Result(catching: work)) }
        }
    }
}

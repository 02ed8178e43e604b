// An app's side of the bridge on iOS, and the app's files for its page. No compiler and no phone has seen it yet.
//
//     let configuration = WKWebViewConfiguration()
//     let files = AppFiles(folder: Bundle.main.resourceURL!.appendingPathComponent("www"))
//     configuration.setURLSchemeHandler(files, forURLScheme: "nearfar")
//     let webView = WKWebView(frame: .zero, configuration: configuration)
//     let bridge = NearfarBridge(webView)
//     webView.load(URLRequest(url: URL(string: "nearfar://app/index.html")!))

import Foundation
import WebKit

/// An error of the page, with a code of web/src/errors.ts, or "error" for other errors.
public struct NearfarError: Error {
    public let code: String
    public let message: String

    /// From an ErrorJson, or from the "error" of a message: a WireError.
    init(_ value: Any?) {
        let error = value as? [String: Any] ?? [:]
        let json = error["json"] as? [String: Any] ?? error
        code = json["code"] as? String ?? "error"
        message = json["message"] as? String ?? "The page gave no reason"
    }

    init(code: String, message: String) {
        self.code = code
        self.message = message
    }
}

/// Create it before the page is loaded. It lives as long as its web view, which holds it.
@MainActor
public final class NearfarBridge: NSObject, WKScriptMessageHandler, WKNavigationDelegate {
    private struct Call {
        let continuation: CheckedContinuation<Any?, Error>
        let item: (Any) -> Void
    }

    private static let protocolNumber = 1
    /// The number of items that the page may send ahead.
    private static let window = 32

    /// Why no model can run in this web view; set after the page's hello.
    public private(set) var problem: NearfarError?
    private let webView: WKWebView
    private let app = UUID().uuidString
    private var session: String?
    private var calls: [Int: Call] = [:]
    private var nextId = 0

    public init(_ webView: WKWebView) {
        self.webView = webView
        super.init()
        webView.configuration.userContentController.add(self, name: "nearfar")
        // A framework's own delegate is not replaced; call webViewWebContentProcessDidTerminate from it.
        if webView.navigationDelegate == nil { webView.navigationDelegate = self }
    }

    /// Calls a function of the page, such as ["load"] or ["engine", "chat", "completions", "create"]. `item` receives
    /// the parts of a streamed answer, whose result is nil. Cancelling the task ends the answer.
    public func call(
        _ path: [String], _ arguments: [Any] = [], item: @escaping (Any) -> Void = { _ in }
    ) async throws -> Any? {
        guard session != nil else {
            throw NearfarError(code: "worker_error", message: "The page has not sent its hello yet; wait for it")
        }
        nextId += 1
        let id = nextId
        return try await withTaskCancellationHandler {
            try await withCheckedThrowingContinuation { continuation in
                calls[id] = Call(continuation: continuation, item: item)
                send(message: ["type": "call", "id": id, "path": path, "args": arguments])
            }
        } onCancel: {
            Task { @MainActor in self.send(message: ["type": "leave", "id": id]) }
        }
    }

    public func userContentController(_: WKUserContentController, didReceive message: WKScriptMessage) {
        guard let text = message.body as? String, let data = text.data(using: .utf8),
              let frame = try? JSONSerialization.jsonObject(with: data) as? [String: Any],
              let number = frame["nearfar"] as? Int
        else { return }
        if number != Self.protocolNumber {
            let message = "The page uses protocol \(number) of the bridge, the app \(Self.protocolNumber)"
            failAll(NearfarError(code: "worker_error", message: message))
            return
        }
        switch (frame["type"] as? String, frame["app"] as? String) {
        case ("hello", nil):
            // The page was just loaded, so calls of the previous page are lost.
            failAll(NearfarError(code: "worker_error", message: "The page was reloaded; load the model again"))
            send(["type": "hello", "app": app])
        case ("hello", app):
            session = frame["session"] as? String
            problem = frame["problem"] is NSNull ? nil : NearfarError(frame["problem"])
        case ("refused", app):
            failAll(NearfarError(frame["error"]))
        case ("message", app) where frame["session"] as? String == session:
            receive(frame["message"] as? [String: Any] ?? [:])
        default:
            break
        }
    }

    /// iOS ended the page's process, for example because memory is low. The page sends a hello when it is loaded again.
    public func webViewWebContentProcessDidTerminate(_ webView: WKWebView) {
        failAll(NearfarError(code: "worker_error", message: "iOS ended the web view's process; load the model again"))
        webView.reload()
    }

    private func receive(_ message: [String: Any]) {
        guard let id = message["id"] as? Int, let call = calls[id] else { return }
        switch message["type"] as? String {
        case "stream":
            send(message: ["type": "more", "id": id, "count": Self.window])
        case "item":
            call.item(message["value"] ?? NSNull())
            send(message: ["type": "more", "id": id, "count": 1])
        case "value":
            finish(id, .success(message["value"]))
        case "end":
            finish(id, .success(nil))
        case "error":
            finish(id, .failure(NearfarError(message["error"])))
        default:
            break
        }
    }

    private func finish(_ id: Int, _ result: Result<Any?, Error>) {
        calls.removeValue(forKey: id)?.continuation.resume(with: result)
    }

    private func failAll(_ error: NearfarError) {
        session = nil
        for id in Array(calls.keys) { finish(id, .failure(error)) }
    }

    private func send(message: [String: Any]) {
        guard let session else { return }
        send(["type": "message", "app": app, "session": session, "message": message])
    }

    private func send(_ frame: [String: Any]) {
        let numbered = frame.merging(["nearfar": Self.protocolNumber]) { mine, _ in mine }
        guard let data = try? JSONSerialization.data(withJSONObject: numbered),
              let text = String(data: data, encoding: .utf8)
        else { return }
        webView.callAsyncJavaScript(
            "nearfarReceive(text)", arguments: ["text": text], in: nil, in: .page, completionHandler: nil
        )
    }
}

/// Serves the files of a folder of the app in pieces, so that no complete file is in memory.
public final class AppFiles: NSObject, WKURLSchemeHandler {
    private static let pieceBytes = 1 << 20
    private static let types = [
        "html": "text/html", "js": "text/javascript", "css": "text/css", "json": "application/json",
        "svg": "image/svg+xml",
    ]

    private let folder: URL
    /// All methods run on the main thread, on which WebKit calls them.
    private var running = Set<ObjectIdentifier>()

    public init(folder: URL) {
        self.folder = folder.standardizedFileURL
    }

    public func webView(_: WKWebView, start task: WKURLSchemeTask) {
        guard let url = task.request.url else { return }
        let file = folder.appendingPathComponent(url.path).standardizedFileURL
        let handle = file.path.hasPrefix(folder.path + "/") ? try? FileHandle(forReadingFrom: file) : nil
        let type = Self.types[file.pathExtension] ?? "application/octet-stream"
        let status = handle == nil ? 404 : 200
        running.insert(ObjectIdentifier(task))
        let headers = ["Content-Type": type]
        task.didReceive(
            HTTPURLResponse(url: url, statusCode: status, httpVersion: "HTTP/1.1", headerFields: headers)!
        )
        send(handle, to: task)
    }

    public func webView(_: WKWebView, stop task: WKURLSchemeTask) {
        running.remove(ObjectIdentifier(task))
    }

    /// Sends one piece per turn of the main loop. WebKit forbids calls on a task that was stopped.
    private func send(_ handle: FileHandle?, to task: WKURLSchemeTask) {
        guard running.contains(ObjectIdentifier(task)) else { return }
        do {
            if let data = try handle?.read(upToCount: Self.pieceBytes), !data.isEmpty {
                task.didReceive(data)
                DispatchQueue.main.async { self.send(handle, to: task) }
            } else {
                running.remove(ObjectIdentifier(task))
                task.didFinish()
            }
        } catch {
            running.remove(ObjectIdentifier(task))
            task.didFailWithError(error)
        }
    }
}

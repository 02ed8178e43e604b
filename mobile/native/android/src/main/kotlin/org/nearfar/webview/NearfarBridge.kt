// An app's side of the bridge on Android, and the app's files for its page. It shows what an app must do; no phone has
// run it yet. It needs androidx.webkit:webkit and kotlinx-coroutines-android, and the page in assets/www.
//
//     webView.settings.javaScriptEnabled = true
//     webView.webViewClient = AppFiles(context)
//     val bridge = NearfarBridge(webView)
//     webView.loadUrl("$ORIGIN/assets/www/index.html")

package org.nearfar.webview

import android.content.Context
import android.net.Uri
import android.webkit.WebResourceRequest
import android.webkit.WebResourceResponse
import android.webkit.WebView
import androidx.webkit.JavaScriptReplyProxy
import androidx.webkit.WebMessageCompat
import androidx.webkit.WebViewAssetLoader
import androidx.webkit.WebViewClientCompat
import androidx.webkit.WebViewCompat
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.CompletableDeferred
import org.json.JSONArray
import org.json.JSONException
import org.json.JSONObject
import java.util.UUID

/** WebViewAssetLoader's own host. It is https, so the page may use WebGPU. */
const val ORIGIN = "https://appassets.androidplatform.net"
private const val PROTOCOL = 1

/** The number of items that the page may send ahead. */
private const val WINDOW = 32

/** An error of the page, with a code of web/src/errors.ts, or "error" for other errors. */
class NearfarException(val code: String, message: String) : Exception(message) {
    companion object {
        /** From an ErrorJson, or from the "error" of a message: a WireError. */
        fun of(error: JSONObject?): NearfarException {
            val json = error?.optJSONObject("json") ?: error ?: JSONObject()
            val message = json.optString("message", "The page gave no reason")
            return NearfarException(json.optString("code", "error"), message)
        }
    }
}

/** The files of the app's assets, under [ORIGIN]/assets/. */
class AppFiles(context: Context) : WebViewClientCompat() {
    private val files = WebViewAssetLoader.Builder()
        .addPathHandler("/assets/", WebViewAssetLoader.AssetsPathHandler(context))
        .build()

    override fun shouldInterceptRequest(view: WebView, request: WebResourceRequest): WebResourceResponse? =
        files.shouldInterceptRequest(request.url)
}

/** Create and use it on the main thread; create it before the page is loaded. Only pages of [origin] can use it. */
class NearfarBridge(webView: WebView, origin: String = ORIGIN) : WebViewCompat.WebMessageListener {
    private class Call(val result: CompletableDeferred<Any?>, val item: (Any?) -> Unit)

    /** Why no model can run in this web view; set after the page's hello. */
    var problem: NearfarException? = null
        private set
    private val app = UUID.randomUUID().toString()
    private val calls = mutableMapOf<Int, Call>()
    private var session: String? = null
    private var reply: JavaScriptReplyProxy? = null
    private var nextId = 0

    init {
        WebViewCompat.addWebMessageListener(webView, "nearfarAndroid", setOf(origin), this)
    }

    /**
     * Calls a function of the page, such as "load" or "engine", "chat", "completions", "create". [item] receives the
     * parts of a streamed answer, whose result is null. Cancelling ends the answer.
     */
    suspend fun call(vararg path: String, arguments: JSONArray = JSONArray(), item: (Any?) -> Unit = {}): Any? {
        if (session == null) throw NearfarException("worker_error", "The page has not sent its hello yet; wait for it")
        val id = ++nextId
        val call = Call(CompletableDeferred(), item)
        calls[id] = call
        val message = JSONObject().put("type", "call").put("id", id)
        sendMessage(message.put("path", JSONArray(path.toList())).put("args", arguments))
        try {
            return call.result.await()
        } catch (cancelled: CancellationException) {
            calls.remove(id)
            sendMessage(JSONObject().put("type", "leave").put("id", id))
            throw cancelled
        }
    }

    override fun onPostMessage(
        view: WebView,
        message: WebMessageCompat,
        sourceOrigin: Uri,
        isMainFrame: Boolean,
        replyProxy: JavaScriptReplyProxy,
    ) {
        val frame = try {
            JSONObject(message.data ?: return)
        } catch (_: JSONException) {
            return
        }
        if (!isMainFrame || !frame.has("nearfar")) return
        reply = replyProxy
        val number = frame.optInt("nearfar")
        val from = if (frame.isNull("app")) null else frame.optString("app")
        when {
            number != PROTOCOL -> {
                val message = "The page uses protocol $number of the bridge, the app $PROTOCOL"
                failAll(NearfarException("worker_error", message))
            }
            // The page was just loaded, so calls of the previous page are lost.
            from == null && frame.optString("type") == "hello" -> {
                failAll(NearfarException("worker_error", "The page was reloaded; load the model again"))
                send(JSONObject().put("type", "hello").put("app", app))
            }
            from != app -> return
            else -> when (frame.optString("type")) {
                "hello" -> {
                    session = frame.getString("session")
                    problem = frame.optJSONObject("problem")?.let(NearfarException::of)
                }
                "refused" -> failAll(NearfarException.of(frame.optJSONObject("error")))
                "message" -> if (frame.optString("session") == session) receive(frame.getJSONObject("message"))
            }
        }
    }

    /** Call this from WebViewClient.onRenderProcessGone too, before the web view is created again. */
    fun failAll(error: NearfarException) {
        session = null
        val failed = calls.values.toList()
        calls.clear()
        for (call in failed) call.result.completeExceptionally(error)
    }

    private fun receive(message: JSONObject) {
        val id = message.getInt("id")
        val call = calls[id] ?: return
        when (message.getString("type")) {
            "stream" -> sendMore(id, WINDOW)
            "item" -> {
                call.item(message.opt("value"))
                sendMore(id, 1)
            }
            "value" -> calls.remove(id)?.result?.complete(message.opt("value"))
            "end" -> calls.remove(id)?.result?.complete(null)
            "error" -> {
                val error = NearfarException.of(message.optJSONObject("error"))
                calls.remove(id)?.result?.completeExceptionally(error)
            }
        }
    }

    private fun sendMore(id: Int, count: Int) =
        sendMessage(JSONObject().put("type", "more").put("id", id).put("count", count))

    private fun sendMessage(message: JSONObject) {
        val frame = JSONObject().put("type", "message").put("app", app)
        send(frame.put("session", session ?: return).put("message", message))
    }

    private fun send(frame: JSONObject) {
        reply?.postMessage(frame.put("nearfar", PROTOCOL).toString())
    }
}

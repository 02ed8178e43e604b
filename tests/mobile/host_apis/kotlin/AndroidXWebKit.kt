// The signatures of androidx.webkit that the host uses.
package androidx.webkit

import android.content.Context
import android.net.Uri
import android.webkit.WebResourceResponse
import android.webkit.WebView
import android.webkit.WebViewClient

abstract class JavaScriptReplyProxy {
    abstract fun postMessage(message: String)
}

class WebMessageCompat(val data: String?)

open class WebViewClientCompat : WebViewClient()

class WebViewAssetLoader {
    interface PathHandler

    class AssetsPathHandler(context: Context) : PathHandler

    class Builder {
        fun addPathHandler(path: String, handler: PathHandler): Builder = this

        fun build() = WebViewAssetLoader()
    }

    fun shouldInterceptRequest(url: Uri): WebResourceResponse? = null
}

class WebViewCompat {
    interface WebMessageListener {
        fun onPostMessage(
            view: WebView,
            message: WebMessageCompat,
            sourceOrigin: Uri,
            isMainFrame: Boolean,
            replyProxy: JavaScriptReplyProxy,
        )
    }

    companion object {
        @JvmStatic
        fun addWebMessageListener(
            webView: WebView,
            jsObjectName: String,
            allowedOriginRules: Set<String>,
            listener: WebMessageListener,
        ) = Unit
    }
}

package android.webkit

import android.content.Context
import android.net.Uri

open class WebView(context: Context)

interface WebResourceRequest {
    val url: Uri
}

open class WebResourceResponse

open class WebViewClient {
    open fun shouldInterceptRequest(view: WebView, request: WebResourceRequest): WebResourceResponse? = null
}

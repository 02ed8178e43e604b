package expo.modules.kotlin

import android.content.Context

class AppContext {
    val reactContext: Context? = null
}

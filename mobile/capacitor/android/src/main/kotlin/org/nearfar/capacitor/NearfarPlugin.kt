// The Capacitor plugin: passes JavaScript's calls to BundleDownloads, and its reports to JavaScript.

package org.nearfar.capacitor

import com.getcapacitor.JSObject
import com.getcapacitor.Plugin
import com.getcapacitor.PluginCall
import com.getcapacitor.PluginMethod
import com.getcapacitor.annotation.CapacitorPlugin
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.cancel
import kotlinx.coroutines.launch
import org.nearfar.downloads.BundleDownloads
import org.nearfar.downloads.DownloadException

@CapacitorPlugin(name = "Nearfar")
class NearfarPlugin : Plugin() {
    private val scope = CoroutineScope(SupervisorJob() + Dispatchers.Main)
    private lateinit var downloads: BundleDownloads

    override fun load() {
        downloads = BundleDownloads(context, scope) { state ->
            notifyListeners("download", JSObject().put("state", state))
        }
    }

    @PluginMethod
    fun start(call: PluginCall) = answer(call) {
        downloads.start(required(call, "job"))
        JSObject()
    }

    @PluginMethod
    fun stop(call: PluginCall) = answer(call) {
        downloads.stop(required(call, "id"))
        JSObject()
    }

    @PluginMethod
    fun remove(call: PluginCall) = answer(call) {
        downloads.remove(required(call, "id"), call.getString("record"))
        JSObject()
    }

    @PluginMethod
    fun stored(call: PluginCall) = answer(call) {
        val manifest = downloads.stored(required(call, "record"))
        if (manifest == null) JSObject() else JSObject().put("manifest", manifest)
    }

    override fun handleOnDestroy() {
        scope.cancel()
    }

    private fun required(call: PluginCall, name: String): String =
        call.getString(name) ?: throw DownloadException("request_error", "The call has no $name")

    private fun answer(call: PluginCall, work: suspend () -> JSObject) {
        scope.launch {
            try {
                call.resolve(work())
            } catch (cancelled: CancellationException) {
                throw cancelled
            } catch (error: DownloadException) {
                call.reject(error.message, error.code)
            } catch (error: Exception) {
                call.reject("The download cannot be changed (${error.message})", "bundle_error", error)
            }
        }
    }
}

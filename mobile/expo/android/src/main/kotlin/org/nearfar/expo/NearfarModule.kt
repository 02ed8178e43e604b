// The Expo module: passes JavaScript's calls to BundleDownloads, and its reports to JavaScript.

package org.nearfar.expo

import expo.modules.kotlin.exception.CodedException
import expo.modules.kotlin.exception.Exceptions
import expo.modules.kotlin.functions.Coroutine
import expo.modules.kotlin.modules.Module
import expo.modules.kotlin.modules.ModuleDefinition
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.cancel
import kotlinx.coroutines.withContext
import org.nearfar.downloads.BundleDownloads
import org.nearfar.downloads.DownloadException

class NearfarModule : Module() {
    private val scope = CoroutineScope(SupervisorJob() + Dispatchers.Main)
    private val downloads by lazy {
        val context = appContext.reactContext ?: throw Exceptions.ReactContextLost()
        BundleDownloads(context.applicationContext, scope) { state -> sendEvent("download", mapOf("state" to state)) }
    }

    override fun definition() = ModuleDefinition {
        Name("Nearfar")

        Events("download")

        AsyncFunction("start") Coroutine { job: String -> onMain { downloads.start(job) } }

        AsyncFunction("stop") Coroutine { id: String -> onMain { downloads.stop(id) } }

        AsyncFunction("remove") Coroutine { id: String, record: String? -> onMain { downloads.remove(id, record) } }

        AsyncFunction("stored") Coroutine { record: String -> onMain { downloads.stored(record) } }

        OnDestroy { scope.cancel() }
    }

    /** BundleDownloads is used on one thread. */
    private suspend fun <Value> onMain(work: suspend () -> Value): Value = withContext(Dispatchers.Main) {
        try {
            work()
        } catch (error: DownloadException) {
            throw CodedException(error.code, error.message, error)
        }
    }
}

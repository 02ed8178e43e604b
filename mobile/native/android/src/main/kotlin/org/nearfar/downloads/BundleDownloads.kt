// Starts, watches, stops and removes downloads of bundles. The plugins for Capacitor and Expo call it with JavaScript's
// JSON texts.

package org.nearfar.downloads

import android.content.Context
import androidx.work.BackoffPolicy
import androidx.work.Constraints
import androidx.work.Data
import androidx.work.ExistingWorkPolicy
import androidx.work.NetworkType
import androidx.work.OneTimeWorkRequestBuilder
import androidx.work.WorkInfo
import androidx.work.WorkManager
import androidx.work.await
import androidx.work.workDataOf
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.Job
import kotlinx.coroutines.launch
import kotlinx.coroutines.withContext
import org.json.JSONObject
import java.util.concurrent.TimeUnit

private const val BACKOFF_SECONDS = 10L

/** [report] receives each change of a download as the JSON of a DownloadState. */
class BundleDownloads(context: Context, private val scope: CoroutineScope, private val report: (String) -> Unit) {
    private val folders = BundleFolders(context.filesDir)
    private val works = WorkManager.getInstance(context)
    private val watched = mutableMapOf<String, Job>()

    /** Starts a download or continues it; one that is running is joined. Call it on one thread. */
    suspend fun start(text: String) {
        val job = withContext(Dispatchers.IO) {
            DownloadJob(text).also { replace(folders.job(it.id), text) }
        }
        val network = if (job.wifiOnly) NetworkType.UNMETERED else NetworkType.CONNECTED
        val work = OneTimeWorkRequestBuilder<DownloadWorker>()
            .setInputData(workDataOf(DownloadWorker.ID to job.id))
            .setConstraints(Constraints.Builder().setRequiredNetworkType(network).build())
            .setBackoffCriteria(BackoffPolicy.LINEAR, BACKOFF_SECONDS, TimeUnit.SECONDS)
            .build()
        works.enqueueUniqueWork(nameOf(job.id), ExistingWorkPolicy.KEEP, work).await()
        watch(job.id)
    }

    /** Stops a download. Its bytes stay, and a later start continues it. */
    suspend fun stop(id: String) {
        watched.remove(id)?.cancel()
        works.cancelUniqueWork(nameOf(id)).await()
    }

    suspend fun remove(id: String, record: String?) {
        stop(id)
        withContext(Dispatchers.IO) {
            folders.bundle(id).deleteRecursively()
            folders.job(id).delete()
            if (record != null) folders.record(record).delete()
        }
    }

    /** The manifest of the bundle that was stored for an address. */
    suspend fun stored(record: String): String? = withContext(Dispatchers.IO) {
        folders.record(record).takeIf { it.isFile }?.readText()
    }

    private fun watch(id: String) {
        watched.remove(id)?.cancel()
        watched[id] = scope.launch {
            works.getWorkInfosForUniqueWorkFlow(nameOf(id)).collect { infos ->
                val info = infos.lastOrNull() ?: return@collect
                stateOf(id, info)?.let { report(it.toString()) }
            }
        }
    }

    /** Null for a download that was stopped: nobody waits for it. */
    private fun stateOf(id: String, info: WorkInfo): JSONObject? {
        val state = when (info.state) {
            WorkInfo.State.SUCCEEDED -> "done"
            WorkInfo.State.FAILED -> "failed"
            WorkInfo.State.CANCELLED -> return null
            else -> "running"
        }
        val counts: Data = if (info.state == WorkInfo.State.SUCCEEDED) info.outputData else info.progress
        val json = JSONObject().put("id", id).put("state", state).put("path", folders.bundle(id).path)
        json.put("loadedBytes", counts.getLong(DownloadWorker.LOADED, 0))
        json.put("storedBytes", counts.getLong(DownloadWorker.STORED, 0))
        info.outputData.getString(DownloadWorker.ERROR)?.let { json.put("error", JSONObject(it)) }
        return json
    }

    private fun nameOf(id: String) = "nearfar-$id"
}

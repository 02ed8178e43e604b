// Android's own task that downloads a bundle: WorkManager runs it, also while the app is in the background or after it
// was ended, and again when the network is back. One run takes at most ten minutes; the next one continues at its byte.

package org.nearfar.downloads

import android.content.Context
import androidx.work.CoroutineWorker
import androidx.work.Data
import androidx.work.WorkerParameters
import androidx.work.workDataOf
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.ensureActive
import kotlinx.coroutines.withContext
import org.json.JSONException
import org.json.JSONObject
import java.io.IOException

private const val MAX_ATTEMPTS = 20

/** The minimum interval of progress reports, each of which WorkManager stores. */
private const val REPORT_NANOSECONDS = 250_000_000L

class DownloadWorker(context: Context, parameters: WorkerParameters) : CoroutineWorker(context, parameters) {
    private val folders = BundleFolders(context.filesDir)

    override suspend fun doWork(): Result = withContext(Dispatchers.IO) {
        try {
            val id = inputData.getString(ID) ?: throw DownloadException("request_error", "The work has no id")
            val job = DownloadJob(folders.job(id).readText())
            val total = downloadAll(job)
            job.finish(folders)
            Result.success(workDataOf(LOADED to total.first, STORED to total.second))
        } catch (error: DownloadException) {
            failure(error)
        } catch (error: JSONException) {
            failure(DownloadException("request_error", "The stored download cannot be read (${error.message})"))
        } catch (error: IOException) {
            if (runAttemptCount < MAX_ATTEMPTS) {
                Result.retry()
            } else {
                val message = "The bundle cannot be fetched (${error.message}); check the connection and load again"
                failure(DownloadException("bundle_error", message))
            }
        }
    }

    /** The bytes of all files, and those that were there before. */
    private suspend fun downloadAll(job: DownloadJob): Pair<Long, Long> = withContext(Dispatchers.IO) {
        var loaded = 0L
        var stored = 0L
        var reported = System.nanoTime()
        val report = { count: Long ->
            loaded += count
            if (System.nanoTime() - reported >= REPORT_NANOSECONDS) {
                reported = System.nanoTime()
                setProgressAsync(workDataOf(LOADED to loaded, STORED to stored))
            }
        }
        val files = BundleFiles(folders.bundle(job.id), report) { ensureActive() }
        stored = job.entries.sumOf(files::storedBytes)
        loaded = stored
        files.requireRoom(job.entries)
        setProgress(workDataOf(LOADED to loaded, STORED to stored))
        for (entry in job.entries) files.download(entry)
        loaded to stored
    }

    private fun failure(error: DownloadException): Result {
        val json = JSONObject().put("code", error.code).put("message", error.message)
        json.put("details", JSONObject(error.details))
        return Result.failure(Data.Builder().putString(ERROR, json.toString()).build())
    }

    companion object {
        const val ID = "id"
        const val LOADED = "loadedBytes"
        const val STORED = "storedBytes"
        const val ERROR = "error"
    }
}

// The signatures of androidx.work (2.10) that the downloads use.
package androidx.work

import android.content.Context
import com.google.common.util.concurrent.ListenableFuture
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.emptyFlow
import java.util.concurrent.TimeUnit

class WorkerParameters

class Data {
    fun getLong(key: String, defaultValue: Long): Long = defaultValue

    fun getString(key: String): String? = null

    class Builder {
        fun putString(key: String, value: String?): Builder = this

        fun build() = Data()
    }
}

fun workDataOf(vararg pairs: Pair<String, Any?>): Data = Data()

abstract class ListenableWorker(val applicationContext: Context, parameters: WorkerParameters) {
    val inputData = Data()
    val runAttemptCount = 0

    fun setProgressAsync(data: Data): ListenableFuture<Void> = throw UnsupportedOperationException()

    abstract class Result {
        companion object {
            @JvmStatic
            fun success(outputData: Data): Result = throw UnsupportedOperationException()

            @JvmStatic
            fun retry(): Result = throw UnsupportedOperationException()

            @JvmStatic
            fun failure(outputData: Data): Result = throw UnsupportedOperationException()
        }
    }
}

abstract class CoroutineWorker(context: Context, parameters: WorkerParameters) :
    ListenableWorker(context, parameters) {
    abstract suspend fun doWork(): Result

    suspend fun setProgress(data: Data) = Unit
}

enum class BackoffPolicy { EXPONENTIAL, LINEAR }

enum class ExistingWorkPolicy { REPLACE, KEEP, APPEND, APPEND_OR_REPLACE }

enum class NetworkType { NOT_REQUIRED, CONNECTED, UNMETERED }

class Constraints {
    class Builder {
        fun setRequiredNetworkType(networkType: NetworkType): Builder = this

        fun build() = Constraints()
    }
}

class OneTimeWorkRequest {
    class Builder {
        fun setInputData(inputData: Data): Builder = this

        fun setConstraints(constraints: Constraints): Builder = this

        fun setBackoffCriteria(policy: BackoffPolicy, delay: Long, unit: TimeUnit): Builder = this

        fun build() = OneTimeWorkRequest()
    }
}

inline fun <reified W : ListenableWorker> OneTimeWorkRequestBuilder(): OneTimeWorkRequest.Builder =
    OneTimeWorkRequest.Builder()

interface Operation {
    abstract class State {
        class SUCCESS : State()
    }
}

suspend inline fun Operation.await(): Operation.State.SUCCESS = Operation.State.SUCCESS()

class WorkInfo(val state: State, val outputData: Data, val progress: Data) {
    enum class State { ENQUEUED, RUNNING, SUCCEEDED, FAILED, BLOCKED, CANCELLED }
}

abstract class WorkManager {
    abstract fun enqueueUniqueWork(name: String, policy: ExistingWorkPolicy, request: OneTimeWorkRequest): Operation

    abstract fun cancelUniqueWork(name: String): Operation

    open fun getWorkInfosForUniqueWorkFlow(name: String): Flow<List<WorkInfo>> = emptyFlow()

    companion object {
        @JvmStatic
        fun getInstance(context: Context): WorkManager = throw UnsupportedOperationException()
    }
}

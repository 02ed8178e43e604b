// Downloads the files of a bundle into a folder, and checks them. It uses only Java's classes.
//
// A file is downloaded as NAME.part, which a later call continues by an HTTP range, and is renamed after its SHA-256 was
// checked: a file without ".part" is complete.

package org.nearfar.downloads

import java.io.File
import java.io.FileOutputStream
import java.io.IOException
import java.io.InputStream
import java.net.HttpURLConnection
import java.net.URL
import java.security.MessageDigest

private const val CHUNK_BYTES = 1 shl 16
private const val TIMEOUT_MS = 60_000
private const val RANGE_NOT_SATISFIABLE = 416

/** Storage that stays free for other uses of the phone. */
private const val SPARE_BYTES = 64L shl 20

/** A failure that trying again does not mend, with a code of web/src/errors.ts. */
class DownloadException(val code: String, message: String, val details: Map<String, Any> = emptyMap()) :
    Exception(message)

/** The manifest gives no [size] for kernels, which are small: they are downloaded in one piece. */
class FileEntry(val url: String, val file: String, val size: Long?, val sha256: String)

/** A name is a relative path without "..": a manifest of another server chooses it. */
fun checkName(name: String) {
    val parts = name.split("/")
    if (name.contains('\\') || parts.any { it.isEmpty() || it == "." || it == ".." }) {
        throw DownloadException("bundle_error", "$name: is not a file's name; compile the bundle again")
    }
}

/** [onBytes] receives the number of new bytes. A negative count removes bytes that were damaged. */
class BundleFiles(
    private val folder: File,
    private val onBytes: (count: Long) -> Unit = {},
    /** Throws to stop the download. Called after each piece. */
    private val checkStopped: () -> Unit = {},
) {
    /** The bytes of a file that are there, checked or not. */
    fun storedBytes(entry: FileEntry): Long =
        if (isComplete(entry)) entry.size ?: 0 else part(entry).length().coerceAtMost(entry.size ?: 0)

    fun isComplete(entry: FileEntry) = target(entry).let { it.isFile && it.length() == (entry.size ?: it.length()) }

    /** Throws DownloadException if the storage is too small. */
    fun requireRoom(entries: List<FileEntry>) {
        folder.mkdirs()
        val missing = entries.sumOf { (it.size ?: 0) - storedBytes(it) }
        val available = folder.usableSpace
        if (missing > 0 && available < missing + SPARE_BYTES) throw noRoom(missing + SPARE_BYTES, available)
    }

    /** Throws DownloadException, or IOException if the network fails: then a later call continues. */
    fun download(entry: FileEntry) {
        checkName(entry.file)
        if (isComplete(entry)) return
        val part = part(entry)
        part.parentFile?.mkdirs()
        // A damaged file is downloaded once more from its start.
        var again = false
        while (true) {
            fetch(entry, part)
            val found = sha256(part)
            if (found == entry.sha256) break
            part.delete()
            onBytes(-(entry.size ?: 0))
            if (again) {
                val expected = entry.sha256.take(12)
                throw DownloadException(
                    "bundle_error",
                    "${entry.file}: has SHA-256 ${found.take(12)}..., the manifest says $expected...; " +
                        "upload or compile the bundle again",
                    mapOf("file" to entry.file, "found" to found, "expected" to entry.sha256),
                )
            }
            again = true
        }
        if (!part.renameTo(target(entry))) throw cannotWrite(part, 0, null)
    }

    private fun fetch(entry: FileEntry, part: File) {
        if (entry.size == null || part.length() > entry.size) discard(part)
        while (part.length() < (entry.size ?: 1)) {
            val start = part.length()
            val connection = URL(entry.url).openConnection() as HttpURLConnection
            try {
                connection.connectTimeout = TIMEOUT_MS
                connection.readTimeout = TIMEOUT_MS
                // The sizes of the manifest are those of the plain file.
                connection.setRequestProperty("Accept-Encoding", "identity")
                if (start > 0) connection.setRequestProperty("Range", "bytes=$start-")
                val status = connection.responseCode
                if (start > 0 && (status == HttpURLConnection.HTTP_OK || status == RANGE_NOT_SATISFIABLE)) {
                    // The server does not support ranges, or has another file.
                    onBytes(-start)
                    discard(part)
                }
                if (status == RANGE_NOT_SATISFIABLE && start > 0) continue
                if (status != HttpURLConnection.HTTP_OK && status != HttpURLConnection.HTTP_PARTIAL) {
                    throw refused(entry, status)
                }
                connection.inputStream.use { append(it, part, entry) }
            } finally {
                connection.disconnect()
            }
            if (part.length() <= start) throw IOException("${entry.url} sent no bytes")
        }
    }

    private fun append(bytes: InputStream, part: File, entry: FileEntry) {
        val chunk = ByteArray(CHUNK_BYTES)
        FileOutputStream(part, true).use { out ->
            var length = part.length()
            while (length < (entry.size ?: Long.MAX_VALUE)) {
                checkStopped()
                val count = bytes.read(chunk)
                if (count < 0) return
                val wanted = count.toLong().coerceAtMost((entry.size ?: Long.MAX_VALUE) - length).toInt()
                try {
                    out.write(chunk, 0, wanted)
                } catch (error: IOException) {
                    throw cannotWrite(part, wanted.toLong(), error)
                }
                length += wanted
                if (entry.size != null) onBytes(wanted.toLong())
            }
        }
    }

    /** 408, 429 and the server's own failures are worth another try; other answers are not. */
    private fun refused(entry: FileEntry, status: Int): Exception =
        if (status == 408 || status == 429 || status >= 500) {
            IOException("${entry.url} answers $status")
        } else {
            DownloadException(
                "bundle_error",
                "${entry.file}: ${entry.url} answers $status; check that the bundle is there",
                mapOf("file" to entry.file, "status" to status),
            )
        }

    private fun discard(part: File) {
        if (part.exists() && !part.delete()) throw cannotWrite(part, 0, null)
    }

    private fun cannotWrite(part: File, neededBytes: Long, error: IOException?): DownloadException {
        val reason = error?.message ?: "it cannot be replaced"
        return DownloadException(
            "storage_error",
            "${part.path}: cannot be written ($reason); free some storage and load again",
            mapOf("neededBytes" to neededBytes, "availableBytes" to folder.usableSpace),
        )
    }

    private fun noRoom(needed: Long, available: Long) = DownloadException(
        "storage_error",
        "The model needs ${needed / 1_000_000} MB more of this phone's storage, but only " +
            "${available / 1_000_000} MB are free; free some storage and load again",
        mapOf("neededBytes" to needed, "availableBytes" to available),
    )

    private fun target(entry: FileEntry) = File(folder, entry.file)

    private fun part(entry: FileEntry) = File(folder, "${entry.file}.part")

    private fun sha256(file: File): String {
        val digest = MessageDigest.getInstance("SHA-256")
        val chunk = ByteArray(CHUNK_BYTES)
        file.inputStream().use {
            while (true) {
                checkStopped()
                val count = it.read(chunk)
                if (count < 0) break
                digest.update(chunk, 0, count)
            }
        }
        return digest.digest().joinToString("") { "%02x".format(it) }
    }
}

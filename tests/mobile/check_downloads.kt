// Runs BundleFiles, the Android side's download of files, on Java's virtual machine against a server with faults.
// `make check-hosts` compiles and runs it.

import com.sun.net.httpserver.HttpExchange
import com.sun.net.httpserver.HttpServer
import org.nearfar.downloads.BundleFiles
import org.nearfar.downloads.DownloadException
import org.nearfar.downloads.FileEntry
import java.io.File
import java.io.IOException
import java.net.InetSocketAddress
import java.nio.file.Files
import java.security.MessageDigest
import kotlin.random.Random

private val BYTES = Random(1).nextBytes(300_000)

/** Serves BYTES at /data. */
private class Server : AutoCloseable {
    val ranges = mutableListOf<String?>()
    var served = BYTES
    var hasRanges = true
    var status: Int? = null

    /** Ends the first connection after a third of the bytes, and answers 503 to later ones until it is false. */
    var isFailing = false
    private val server = HttpServer.create(InetSocketAddress("127.0.0.1", 0), 0)
    val url get() = "http://127.0.0.1:${server.address.port}/data"

    init {
        server.createContext("/", ::answer)
        server.start()
    }

    private fun answer(exchange: HttpExchange) = exchange.use {
        val range = it.requestHeaders.getFirst("Range")
        ranges += range
        val start = if (hasRanges && range != null) range.removePrefix("bytes=").removeSuffix("-").toInt() else 0
        val bytes = served.copyOfRange(start.coerceAtMost(served.size), served.size)
        val answered = if (isFailing && ranges.size > 1) 503 else status
        it.sendResponseHeaders(answered ?: if (start > 0) 206 else 200, bytes.size.toLong().coerceAtLeast(1))
        it.responseBody.write(bytes, 0, if (isFailing) bytes.size / 3 else bytes.size)
        it.responseBody.flush()
    }

    override fun close() = server.stop(0)
}

private fun entryOf(server: Server, name: String = "weights/0.bin"): FileEntry {
    val hash = MessageDigest.getInstance("SHA-256").digest(BYTES).joinToString("") { "%02x".format(it) }
    return FileEntry(server.url, name, BYTES.size.toLong(), hash)
}

private class Stopped : RuntimeException()

private inline fun <reified Expected : Throwable> fails(work: () -> Unit): Expected {
    try {
        work()
    } catch (error: Throwable) {
        return error as? Expected ?: throw error
    }
    error("it did not fail with ${Expected::class}")
}

private fun case(name: String, work: (Server, File) -> Unit) {
    val folder = Files.createTempDirectory("downloads").toFile()
    Server().use { work(it, folder) }
    folder.deleteRecursively()
    println("  $name")
}

private fun File.data() = File(this, "weights/0.bin").readBytes()

fun main() {
    case("a cut connection is continued at its byte") { server, folder ->
        var count = 0L
        val files = BundleFiles(folder, { count += it })
        server.isFailing = true
        fails<IOException> { files.download(entryOf(server)) }
        check(!files.isComplete(entryOf(server)) && files.storedBytes(entryOf(server)) == count)
        val stored = count
        check(stored in 1..100_000)
        server.isFailing = false
        files.download(entryOf(server))
        check(server.ranges.last() == "bytes=$stored-") { server.ranges }
        check(count == BYTES.size.toLong() && folder.data().contentEquals(BYTES))
        val before = server.ranges.size
        files.download(entryOf(server))
        check(server.ranges.size == before) { "a complete file was fetched again" }
    }
    case("a stopped download is continued") { server, folder ->
        var pieces = 0
        val stopping = BundleFiles(folder, { pieces += 1 }, { if (pieces == 2) throw Stopped() })
        fails<Stopped> { stopping.download(entryOf(server)) }
        BundleFiles(folder).download(entryOf(server))
        check(server.ranges.last() != null && folder.data().contentEquals(BYTES))
    }
    case("a server without ranges sends the file from its start") { server, folder ->
        var count = 0L
        server.isFailing = true
        val files = BundleFiles(folder, { count += it })
        fails<IOException> { files.download(entryOf(server)) }
        server.isFailing = false
        server.hasRanges = false
        files.download(entryOf(server))
        check(count == BYTES.size.toLong() && folder.data().contentEquals(BYTES))
    }
    case("a file without a size is downloaded once, from its start") { server, folder ->
        var count = 0L
        val entry = entryOf(server).let { FileEntry(it.url, it.file, null, it.sha256) }
        File(folder, "weights").mkdirs()
        File(folder, "weights/0.bin.part").writeBytes(BYTES.copyOf(1000))
        repeat(2) { BundleFiles(folder, { count += it }).download(entry) }
        check(server.ranges == listOf(null) && count == 0L && folder.data().contentEquals(BYTES))
    }
    case("a damaged part is downloaded once more, then it is an error") { server, folder ->
        File(folder, "weights").mkdirs()
        File(folder, "weights/0.bin.part").writeBytes(ByteArray(1000))
        BundleFiles(folder).download(entryOf(server))
        check(folder.data().contentEquals(BYTES))
        File(folder, "weights/0.bin").delete()
        server.served = BYTES.copyOf().also { it[7] = (it[7] + 1).toByte() }
        val error = fails<DownloadException> { BundleFiles(folder).download(entryOf(server)) }
        check(error.code == "bundle_error" && error.message!!.contains("has SHA-256")) { error }
        check(!File(folder, "weights/0.bin").exists())
    }
    case("answers of the server are errors or reasons to try again") { server, folder ->
        server.status = 404
        check(fails<DownloadException> { BundleFiles(folder).download(entryOf(server)) }.details["status"] == 404)
        server.status = 503
        fails<IOException> { BundleFiles(folder).download(entryOf(server)) }
    }
    case("names outside of the folder, and a full storage, are refused") { server, folder ->
        for (name in listOf("../a", "/a", "a//b", "a/..", "..\\a")) {
            fails<DownloadException> { BundleFiles(folder).download(entryOf(server, name)) }
        }
        val large = FileEntry(server.url, "a", Long.MAX_VALUE / 4, "0")
        check(fails<DownloadException> { BundleFiles(folder).requireRoom(listOf(large)) }.code == "storage_error")
        check(server.ranges.isEmpty())
    }
}

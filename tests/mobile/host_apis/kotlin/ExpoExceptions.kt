package expo.modules.kotlin.exception

open class CodedException(message: String?, cause: Throwable? = null) : Exception(message, cause) {
    constructor(code: String?, message: String?, cause: Throwable?) : this(message, cause)
}

class Exceptions {
    class ReactContextLost : CodedException("The react context has been lost")
}

package expo.modules.kotlin.functions

class AsyncFunctionBuilder(val name: String)

class SuspendFunctionComponent(val body: Any)

inline infix fun <reified R, reified P0> AsyncFunctionBuilder.Coroutine(crossinline block: suspend (P0) -> R) {
    val body: suspend (P0) -> R = { block(it) }
    SuspendFunctionComponent(body)
}

inline infix fun <reified R, reified P0, reified P1> AsyncFunctionBuilder.Coroutine(
    crossinline block: suspend (P0, P1) -> R,
) {
    val body: suspend (P0, P1) -> R = { one, other -> block(one, other) }
    SuspendFunctionComponent(body)
}

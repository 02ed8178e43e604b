package com.google.common.util.concurrent

interface ListenableFuture<T>

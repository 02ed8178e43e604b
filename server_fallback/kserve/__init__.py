"""The Open Inference Protocol (KServe v2, Triton's protocol), over HTTP and gRPC."""

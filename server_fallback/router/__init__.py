"""The router: what may and should answer a request, the near side or the far one."""

"""The passes that rewrite a program on its way to stages; `tracing/pipeline` says in what order."""

"""Built-in plugins, one per file, registered by entry point like plugins of other packages."""

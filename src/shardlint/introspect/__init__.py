"""Look at live objects that may be hostile: walk, read, import, and match without changing them."""

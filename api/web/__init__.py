"""The web pages under /ui: server-rendered HTML over the functions that the HTTP routes call."""

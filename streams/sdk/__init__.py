"""The client library: no Faust, no event loop."""

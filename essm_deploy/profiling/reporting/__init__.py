"""Reports and comparisons of the JSON documents that `profile` and `build` print. Nothing here measures."""

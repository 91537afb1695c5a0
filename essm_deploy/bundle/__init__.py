"""The artifact: a directory that an app loads. Writing it takes the compiler; verifying it takes only the runtime."""

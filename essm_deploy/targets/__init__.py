"""What a device is, and how a worker is started on it."""

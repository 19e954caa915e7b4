"""Whether a task is one: a kernel that does not do its work must not pass it."""

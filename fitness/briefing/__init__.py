"""Words about a task, a GPU and the rules, for whoever writes a kernel."""

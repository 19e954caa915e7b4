"""The evaluator as a service: over HTTP, for language models over MCP, and a client."""

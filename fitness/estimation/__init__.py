"""How long a plan would take: traffic and operations of sampled programs, and a model of the target."""

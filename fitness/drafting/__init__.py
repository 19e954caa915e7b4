"""Tasks that a language model wrote: nobody vouches for their code until it was checked, and read."""

"""Language models: who is asked, what it may cost, and what was asked and answered."""

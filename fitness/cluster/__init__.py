"""Recorders and runners by the dozen: processes and Ray actors that can be lost."""

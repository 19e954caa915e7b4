"""Runs front ends and backends on many machines: processes and Ray actors that can be lost."""

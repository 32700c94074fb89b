"""What a weight sync works with: buckets on their way, checksums, what fits what, and the canary."""

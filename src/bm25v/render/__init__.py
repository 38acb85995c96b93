"""Self-contained HTML pages, and fragments for notebooks, of values that others computed."""

"""From timings to a choice: statistics of a sample, the verdict on a limit, the search over budgets, the journal of a sweep."""

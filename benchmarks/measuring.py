"""How the benchmarks measure: both sides of a ratio in turn, and medians."""

import statistics


def median_times(clock, rounds: int, *functions) -> list[float]:
    """Median seconds of each function; they run in turn, round after round."""
    for function in functions:
        function()
    times = [[] for _ in functions]
    for _ in range(rounds):
        for function, mine in zip(functions, times, strict=True):
            start = clock()
            function()
            mine.append(clock() - start)
    return [statistics.median(mine) for mine in times]

# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Jobs of `memlift bench zmem` as users bring them: a group-by of pandas and a training of XGBoost, which know nothing of memlift.

Flow     jobs.py pandas ROWS ROUNDS | jobs.py xgboost ROWS TREES ─▶ data from a fixed seed ─▶ work ─▶ one JSON line: checksum, built_s,
         worked_s
Rule     the same words give the same checksum: one thread, no order of hashing; the sum is over all results
Missing  jobs.py can JOB ends with 3 and one line that says what to install
"""

import hashlib
import json
import sys
import time


def pandas_job(rows: int, rounds: int):
    """Sales by city and product; a running total for every row; the rows of the best products, joined."""
    import numpy as np
    import pandas as pd

    begun = time.perf_counter()
    draw = np.random.default_rng(5)
    cities = np.array([f"city-{number:03d}" for number in range(200)])
    table = pd.DataFrame(
        {
            "city": cities[draw.integers(0, len(cities), rows)],
            "product": draw.integers(0, 5000, rows),
            "count": draw.integers(1, 20, rows),
            "price": np.round(draw.gamma(2.0, 30.0, rows), 2),
            "time": 1_700_000_000 + np.cumsum(draw.integers(0, 9, rows)),
        }
    )
    built = time.perf_counter()
    total = hashlib.sha256()
    for turn in range(rounds):
        table["worth"] = table["count"] * table["price"] + turn
        by = table.groupby(["city", "product"], sort=True, observed=True)["worth"].agg(["sum", "mean", "count"])
        total.update(by.to_numpy().tobytes())
        table["running"] = table.groupby("city", sort=False, observed=True)["worth"].cumsum()
        best = by.reset_index().nlargest(500, "sum")[["city", "product"]]
        joined = table.merge(best, on=["city", "product"])
        total.update(joined["running"].to_numpy().tobytes())
    return total, begun, built


def xgboost_job(rows: int, trees: int):
    """Regression on 30 features by histograms."""
    import numpy as np
    import xgboost

    begun = time.perf_counter()
    draw = np.random.default_rng(6)
    features = np.round(draw.normal(0.0, 10.0, (rows, 30)).astype(np.float32), 1)
    target = features[:, 0] * 0.5 + np.abs(features[:, 1]) - features[:, 2] * features[:, 3] * 0.02
    built = time.perf_counter()
    data = xgboost.DMatrix(features, label=target)
    booster = xgboost.train({"max_depth": 6, "nthread": 1, "tree_method": "hist", "seed": 1}, data, trees)
    return hashlib.sha256(booster.predict(data).tobytes()), begun, built


def can(job: str) -> int:
    wanted = {"pandas": "pandas", "xgboost": "xgboost"}[job]
    try:
        __import__(wanted)
    except ImportError:
        print(f"{wanted} is not in this Python: run tools/setup venv")
        return 3
    return 0


def main(words):
    if words[0] == "can":
        return can(words[1])
    job = {"pandas": pandas_job, "xgboost": xgboost_job}[words[0]]
    total, begun, built = job(int(words[1]), int(words[2]))
    ended = time.perf_counter()
    print(
        json.dumps(
            {"checksum": total.hexdigest()[:16], "built_s": built - begun, "worked_s": ended - built}
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Three questions to the warehouse, with DuckDB and matplotlib: how quick, how available, how much was waiting?

WAREHOUSE=DIR python plots.py        # DIR is what `scale0 pipeline run --warehouse DIR` made; it needs no Spark

`plots.ipynb` is the same, cell by cell.
"""

# %%
import os
from pathlib import Path

import matplotlib.dates as mdates
import matplotlib.pyplot as plt

from scale0.pipeline import open_duckdb

WAREHOUSE = Path(os.environ.get("WAREHOUSE", "warehouse"))
OUT = Path(os.environ.get("OUT", "."))

# One connection is one state of the warehouse: all tables of the same run, whatever a driver writes meanwhile.
db = open_duckdb(WAREHOUSE)
db.sql("SET TimeZone = 'UTC'")


def by_hour(axes: plt.Axes) -> None:
    """Times on the x axis, in few words."""
    locator = mdates.AutoDateLocator()
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(mdates.ConciseDateFormatter(locator))
    axes.grid(alpha=0.3)


# %% [markdown]
# **How quick are services, hour by hour?** Of the four that are asked most. Percentiles of an hour come from merged
# histograms, so they are of all requests of that hour; percentiles must never be averaged.

# %%
latency = db.sql("""
    WITH busiest AS (
        SELECT service FROM request_stats WHERE grain = 'day'
        GROUP BY service ORDER BY sum(answered) DESC, service LIMIT 4
    )
    SELECT service, start, p50 * 1000 AS p50_ms, p99 * 1000 AS p99_ms, answered
    FROM request_stats JOIN busiest USING (service)
    WHERE grain = 'hour' AND p99 IS NOT NULL ORDER BY service, start  -- in an hour without answers there is none
""").df()

figure, panels = plt.subplots(2, 2, figsize=(11, 6), sharex=True, constrained_layout=True)
for axes, (service, rows) in zip(panels.flat, latency.groupby("service"), strict=False):
    axes.plot(rows["start"], rows["p50_ms"], label="p50", color="tab:blue")
    axes.plot(rows["start"], rows["p99_ms"], label="p99", color="tab:red")
    axes.set(title=service, ylabel="ms", ylim=(0, None))
    axes.legend(loc="upper left")
    by_hour(axes)
    worst = rows.loc[rows["p99_ms"].idxmax()]
    when = f"{worst['start']:%Y-%m-%d %H:%M}"
    print(f"{service}: {rows['answered'].sum():,} answers, worst p99 {worst['p99_ms']:.1f} ms at {when}")
figure.savefig(OUT / "latency.png", dpi=120)

# %% [markdown]
# **How available were checks?** Every second was exactly one of up, down, downtime, unobserved, absent. What nobody saw
# is neither good nor bad: availability lies between two numbers, and the plot shows how far apart they are.

# %%
checks = db.sql("""
    WITH totals AS (
        SELECT subject, sum(up_seconds) AS up, sum(down_seconds) AS down, sum(unobserved_seconds) AS unobserved,
               sum(up_seconds + down_seconds + unobserved_seconds) AS counted
        FROM availability WHERE subject_kind = 'check' AND grain = 'day' GROUP BY subject
    )
    SELECT subject, up / counted AS low, (up + unobserved) / counted AS high, down / counted AS down,
           unobserved / counted AS unobserved
    FROM totals WHERE counted > 0 ORDER BY high, low, subject LIMIT 12
""").df()

figure, axes = plt.subplots(figsize=(11, 5), constrained_layout=True)
axes.barh(checks["subject"], checks["low"], color="tab:green", label="up")
axes.barh(
    checks["subject"], checks["unobserved"], left=checks["low"], color="lightgrey", hatch="//", label="unobserved"
)
axes.barh(checks["subject"], checks["down"], left=checks["high"], color="tab:red", label="down")
axes.invert_yaxis()  # the worst on top
axes.set(title="The least available checks", xlabel="share of the time that counts", xlim=(0, 1))
axes.legend(loc="lower left")
figure.savefig(OUT / "availability.png", dpi=120)
for check in checks.head(3).itertuples():
    print(f"{check.subject}: available between {check.low:.2%} and {check.high:.2%}")

# %% [markdown]
# **How many tasks were waiting?** A task waits from when it may start until it is first handed out, or ends without
# that. Each is one step up and one down; their running sum is the depth of the queue.

# %%
depth = db.sql("""
    WITH steps AS (
        SELECT submitted + to_microseconds((1e6 * coalesce(delay_seconds, 0))::BIGINT) AS moment, 1 AS step FROM tasks
        UNION ALL
        SELECT coalesce(first_assigned, ended), -1 FROM tasks WHERE coalesce(first_assigned, ended) IS NOT NULL
    ), depths AS (
        SELECT moment, sum(step) OVER (ORDER BY moment) AS depth FROM steps  -- steps of one instant count together
    )
    SELECT date_trunc('hour', moment) AS start, max(depth)::BIGINT AS most FROM depths GROUP BY 1 ORDER BY 1
""").df()
waits = db.sql("""
    SELECT date_trunc('hour', submitted) AS start, quantile_cont(wait_seconds, 0.99) AS p99
    FROM tasks WHERE wait_seconds IS NOT NULL GROUP BY 1 ORDER BY 1
""").df()

if depth.empty:
    print("queue: nothing was submitted")
else:
    figure, axes = plt.subplots(figsize=(11, 4), constrained_layout=True)
    axes.fill_between(depth["start"], depth["most"], step="post", color="tab:blue", alpha=0.4, label="most at once")
    axes.set(title="Tasks that were waiting", ylabel="tasks", ylim=(0, None))
    by_hour(axes)
    other = axes.twinx()
    other.plot(waits["start"], waits["p99"], color="tab:red", label="p99 of the wait")
    other.set(ylabel="seconds", ylim=(0, None))
    figure.legend(loc="outside upper right", ncols=2)
    figure.savefig(OUT / "queue.png", dpi=120)
    most, slowest = depth["most"].max(), waits["p99"].max()
    print(f"queue: at most {most} at once; in the worst hour p99 of the wait was {slowest:.1f} s")

-- Which rank is slow: those that take longest in an endpoint, compared with the median of its ranks.
WITH ranks AS (
  SELECT run, actor, endpoint, rank, host, pid, count(*) AS calls, avg(ran_us) / 1e3 AS ms
  FROM handled
  GROUP BY run, actor, endpoint, rank, host, pid
), medians AS (
  SELECT run, actor, endpoint, median(ms) AS ms, count(*) AS ranks FROM ranks GROUP BY run, actor, endpoint
)
SELECT r.actor, r.endpoint, r.rank, r.host, r.pid, r.calls, round(r.ms, 3) AS ms, round(r.ms / m.ms, 2) AS times_median
FROM ranks r JOIN medians m ON r.run = m.run AND r.actor = m.actor AND r.endpoint = m.endpoint
WHERE m.ranks > 1 AND m.ms > 0
ORDER BY times_median DESC, r.actor, r.endpoint, r.rank, r.pid
LIMIT 10

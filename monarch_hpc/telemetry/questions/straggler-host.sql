-- Which host is the straggler: the time that an endpoint takes there, compared with the median of the hosts.
WITH hosts AS (
  SELECT run, actor, endpoint, host, count(*) AS calls, median(ran_us) / 1e3 AS ms
  FROM handled
  GROUP BY run, actor, endpoint, host
), medians AS (
  SELECT run, actor, endpoint, median(ms) AS ms, count(*) AS hosts FROM hosts GROUP BY run, actor, endpoint
)
SELECT h.host, h.actor, h.endpoint, h.calls, round(h.ms, 3) AS ms, round(h.ms / m.ms, 2) AS times_median
FROM hosts h JOIN medians m ON h.run = m.run AND h.actor = m.actor AND h.endpoint = m.endpoint
WHERE m.hosts > 1 AND m.ms > 0
ORDER BY times_median DESC, h.host, h.actor, h.endpoint
LIMIT 10

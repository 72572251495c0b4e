-- How long endpoints take: the median, the slowest in a hundred, the slowest, and the same for waiting before. Hosts count
-- calls by the logarithm of their time, so that the two first ones have an error of 3 %.
WITH counts AS (
  SELECT actor, endpoint, floor(ln(greatest(ran_us, 0.001)) * 16) AS ran, floor(ln(queued_us + 1) * 16) AS queued,
         count(*) AS calls, count(*) FILTER (WHERE status = 'failed') AS failed, max(ran_us) AS longest_us
  FROM handled
  WHERE status <> 'running'
  GROUP BY 1, 2, 3, 4
), ranked AS (
  SELECT *, sum(calls) OVER (PARTITION BY actor, endpoint) AS total,
         sum(calls) OVER (PARTITION BY actor, endpoint ORDER BY ran) AS faster,
         sum(calls) OVER (PARTITION BY actor, endpoint ORDER BY queued) AS sooner
  FROM counts
)
SELECT actor, endpoint, sum(calls) AS calls, sum(failed) AS failed,
       round(least(exp((min(ran) FILTER (WHERE faster >= 0.5 * total) + 0.5) / 16), max(longest_us)) / 1e3, 3) AS p50_ms,
       round(least(exp((min(ran) FILTER (WHERE faster >= 0.99 * total) + 0.5) / 16), max(longest_us)) / 1e3, 3) AS p99_ms,
       round(max(longest_us) / 1e3, 3) AS longest_ms,
       round((exp((min(queued) FILTER (WHERE sooner >= 0.99 * total) + 0.5) / 16) - 1) / 1e3, 3) AS queued_p99_ms
FROM ranked
GROUP BY actor, endpoint
ORDER BY p99_ms DESC, actor, endpoint
LIMIT 50

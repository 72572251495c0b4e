-- How long endpoints take: the median, the slowest in a hundred, the slowest, and the same for waiting before.
SELECT actor, endpoint, count(*) AS calls, count(*) FILTER (WHERE status = 'failed') AS failed,
       round(approx_percentile_cont(0.5) WITHIN GROUP (ORDER BY ran_us) / 1e3, 3) AS p50_ms,
       round(approx_percentile_cont(0.99) WITHIN GROUP (ORDER BY ran_us) / 1e3, 3) AS p99_ms,
       round(max(ran_us) / 1e3, 3) AS longest_ms,
       round(approx_percentile_cont(0.99) WITHIN GROUP (ORDER BY queued_us) / 1e3, 3) AS queued_p99_ms
FROM handled
WHERE status <> 'running'
GROUP BY actor, endpoint
ORDER BY p99_ms DESC, actor, endpoint
LIMIT 50

-- What failed first: calls that raised, and processes that died, by time.
WITH last AS (
  SELECT run, mesh, rank, host, pid, max(t) AS t
  FROM (
    SELECT run, mesh, rank, host, pid, t FROM handled
    UNION ALL SELECT run, mesh, rank, host, pid, t FROM sends
    UNION ALL SELECT run, mesh, rank, host, pid, t FROM spans
    UNION ALL SELECT run, mesh, rank, host, pid, t FROM metrics
  )
  GROUP BY run, mesh, rank, host, pid
)
SELECT t, host, rank, pid, 'call' AS kind, endpoint || ' of ' || actor AS what, error, line AS detail
FROM handled
WHERE status = 'failed'
UNION ALL
SELECT l.t, p.host, p.rank, p.pid, 'death', 'its last record', '', p.cause
FROM procs p
LEFT JOIN last l ON p.run = l.run AND p.mesh = l.mesh AND p.rank = l.rank AND p.host = l.host AND p.pid = l.pid
WHERE p.state = 'ended'
ORDER BY t, host, pid, kind, what
LIMIT 10

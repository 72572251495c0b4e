-- What happened before the death: the last five seconds of each process that died, on one time line.
WITH dead AS (
  SELECT run, mesh, rank, host, pid, cause FROM procs WHERE state = 'ended'
), happened AS (
  SELECT run, mesh, rank, host, pid, t, 'call' AS kind, endpoint || ' of ' || actor AS what, status, error || ' ' || line AS detail
  FROM handled
  UNION ALL
  SELECT run, mesh, rank, host, pid, t, 'sent', endpoint || ' of ' || target_actor, status, target_host FROM sends
  UNION ALL
  SELECT run, mesh, rank, host, pid, t, 'span', name, status, tags FROM spans
  UNION ALL
  SELECT run, mesh, rank, host, pid, t, 'metric', name, CAST(value AS VARCHAR), tags FROM metrics
), ends AS (
  SELECT run, mesh, rank, host, pid, max(t) AS t FROM happened GROUP BY run, mesh, rank, host, pid
)
SELECT h.t, h.host, h.rank, h.pid, d.cause, h.kind, h.what, h.status, h.detail
FROM happened h
JOIN dead d ON d.run = h.run AND d.mesh = h.mesh AND d.rank = h.rank AND d.host = h.host AND d.pid = h.pid
JOIN ends e ON e.run = h.run AND e.mesh = h.mesh AND e.rank = h.rank AND e.host = h.host AND e.pid = h.pid
WHERE h.t >= e.t - INTERVAL '5 seconds'
ORDER BY h.t, h.host, h.pid, h.kind, h.what
LIMIT 1000

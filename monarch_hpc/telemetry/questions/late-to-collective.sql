-- Who comes last to a collective, and so waits least in it: spans named as one, such as all_reduce.
WITH ranks AS (
  SELECT run, name, mesh, rank, host, pid, count(*) AS times, avg(took_us) / 1e3 AS ms
  FROM spans
  WHERE name ~* '(all|reduce|broadcast|barrier|gather|scatter)' AND status <> 'open'
  GROUP BY run, name, mesh, rank, host, pid
), most AS (
  SELECT run, name, mesh, max(ms) AS ms, count(*) AS ranks FROM ranks GROUP BY run, name, mesh
)
SELECT r.name, r.rank, r.host, r.pid, r.times, round(r.ms, 3) AS ms, round(m.ms - r.ms, 3) AS others_wait_ms
FROM ranks r JOIN most m ON r.run = m.run AND r.name = m.name AND r.mesh = m.mesh
WHERE m.ranks > 1
ORDER BY others_wait_ms DESC, r.name, r.rank, r.pid
LIMIT 10

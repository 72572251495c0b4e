-- Who waits for whom in a ring: actors that are in a deadlock, because one of the calls cannot begin.
WITH RECURSIVE calls AS (
  SELECT s.incarnation || '/' || s.actor_id AS waiter,
         s.actor || '[' || s.actor_rank || ']' AS name,
         CASE WHEN s.through_tree THEN h.incarnation || '/' || h.actor_id ELSE s.target || '/' || s.target_id END AS holder,
         h.call IS NOT NULL AS runs,
         s.run AS run,
         s.took_us / 1e6 AS waits_s
  FROM sends s
  JOIN recorders r ON r.incarnation = s.incarnation AND r.state <> 'ended'
  LEFT JOIN handled h
    ON h.status = 'running' AND h.caller = s.incarnation AND h.call = s.call AND h.through_tree = s.through_tree
  WHERE s.status = 'open' AND s.awaited AND s.actor <> ''
), edges AS (
  SELECT DISTINCT waiter, name, holder, runs, run, waits_s FROM calls WHERE holder IN (SELECT waiter FROM calls)
), paths AS (
  SELECT waiter AS first, holder, name AS ring, run, waits_s, 1 AS actors FROM edges WHERE NOT runs
  UNION ALL
  SELECT p.first, e.holder, p.ring || ' -> ' || e.name, p.run, greatest(p.waits_s, e.waits_s), p.actors + 1
  FROM paths p JOIN edges e ON e.waiter = p.holder
  WHERE p.holder <> p.first AND p.actors < 16
)
SELECT run, ring || ' -> ' || split_part(ring, ' -> ', 1) AS ring, actors, round(waits_s, 1) AS waits_s
FROM paths
WHERE holder = first
ORDER BY actors, ring, run
LIMIT 20

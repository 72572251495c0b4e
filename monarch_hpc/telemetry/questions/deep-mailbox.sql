-- Whose mailbox is deep: calls that were sent to an actor, and have not begun.
SELECT s.target_actor AS actor, s.target_host AS host, p.mesh, p.rank, p.state, count(*) AS calls,
       count(DISTINCT s.incarnation || '/' || s.actor_id) AS callers, min(s.endpoint) AS endpoint,
       round(max(s.took_us) / 1e6, 3) AS oldest_s
FROM sends s
LEFT JOIN handled h ON h.caller = s.incarnation AND h.call = s.call AND NOT h.through_tree
LEFT JOIN recorders p ON p.incarnation = s.target
WHERE s.status = 'open' AND NOT s.through_tree AND h.call IS NULL AND s.target_actor <> ''
GROUP BY s.target_actor, s.target_host, s.target, s.target_id, p.mesh, p.rank, p.state
ORDER BY calls DESC, actor, host, p.rank
LIMIT 20

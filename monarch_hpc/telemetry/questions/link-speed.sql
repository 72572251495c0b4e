-- How fast memory travels between hosts, by path, the slowest first.
SELECT host, peer_host, path, write, count(*) AS transfers, count(*) FILTER (WHERE status = 'failed') AS failed,
       sum(bytes) AS bytes, round(sum(bytes) / nullif(sum(took_us), 0) / 1e3, 3) AS gb_per_s
FROM transfers
GROUP BY host, peer_host, path, write
ORDER BY gb_per_s, host, peer_host, path, write
LIMIT 50

-- What Slurm has marked: hosts that Slurm lets no more jobs run on, why, and the procs that live there.
SELECT s.host, s.job, s.state, s.reason, h.procs, h.state AS agent, round(s.time_left_s / 60, 1) AS minutes_left
FROM slurm s
LEFT JOIN hosts h ON h.host = s.host
WHERE s.marked
ORDER BY h.procs DESC, s.host
LIMIT 50

-- Whose memory grows: procs by the slope of their resident memory over the samples of the last ten minutes.
SELECT host, rank, run, mesh, pid, count(*) AS samples, round(min(rss_bytes) / 1e6, 1) AS least_mb,
       round(max(rss_bytes) / 1e6, 1) AS most_mb,
       round(regr_slope(rss_bytes, extract(epoch FROM t)) / 1e6, 3) AS mb_per_s
FROM proc_samples
GROUP BY run, mesh, rank, host, pid
HAVING count(*) > 1
ORDER BY mb_per_s DESC, host, pid
LIMIT 50

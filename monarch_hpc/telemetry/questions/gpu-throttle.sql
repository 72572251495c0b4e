-- Is a GPU throttled: GPUs whose clock was held down, by how much of the time, and those with errors.
SELECT host, gpu, model, count(*) AS samples, count(*) FILTER (WHERE throttle <> '') AS throttled,
       string_agg(DISTINCT nullif(throttle, ''), ' | ') AS why, max(temperature_c) AS hottest_c, min(clock_mhz) AS least_mhz,
       max(max_clock_mhz) AS max_mhz, max(power_w) AS most_w, max(ecc_errors) AS ecc_errors, max(xid) AS xid
FROM gpu_samples
GROUP BY host, gpu, model
HAVING count(*) FILTER (WHERE throttle <> '' OR xid > 0 OR ecc_errors > 0) > 0
ORDER BY throttled DESC, host, gpu
LIMIT 50
